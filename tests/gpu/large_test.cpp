// SPDX-License-Identifier: Apache-2.0
// Allreduce of 1 B to 1 GiB against a reference in float64, as far as the memory goes; and launches in graphs.
#include <cmath>
#include <cstdio>

#include "gpu/gpu_test.h"
#include "support/gpu_program.h"

namespace treering::cuda {
namespace {

using namespace treering::testing;

constexpr uint32_t kRanks = 2;
constexpr uint32_t kChannels = 8;

GpuSettings settings() {
  return {.ranks = kRanks,
          .channels = kChannels,
          .depth = 4,
          .threads = 512,
          .slot_bytes = 128 << 10,
          .min_slice_bytes = 16 << 10};
}

// In [-1, 1), and different for every rank and element.
float value_of(uint32_t rank, size_t i) {
  auto bits = static_cast<uint32_t>(i * 2654435761u + rank * 0x9e3779b9u);
  bits ^= bits >> 15;
  bits *= 0x2c1b3c6du;
  return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
}

const Algorithm* algorithm(const char* name) {
  const Algorithm* found = nullptr;
  EXPECT_TRUE(find_algorithm(Collective::kAllReduce, name, &found).ok());
  return found;
}

void check_floats(DeviceProtocol protocol, size_t count) {
  const size_t bytes = count * sizeof(float);
  Gpus gpus(gpu(), settings());
  GpuJob job{.algorithm = algorithm("two-shot"), .protocol = protocol, .count = count, .type = trFloat32};
  std::vector<Allocation> memory;
  std::vector<float> host(count);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < count; ++i) host[i] = value_of(rank, i);
    job.inputs.push_back(memory.emplace_back(gpu(), bytes).data());
    gpu()->copy(memory.back().data(), host.data(), bytes);
    job.outputs.push_back(memory.emplace_back(gpu(), bytes).data());
  }
  ASSERT_EQ(gpus.run(job), "") << name_of(protocol) << " " << bytes << " bytes";
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    gpu()->copy(host.data(), job.outputs[rank], bytes);
    for (size_t i = 0; i < count; ++i) {
      double sum = 0, magnitudes = 0;
      for (uint32_t r = 0; r < kRanks; ++r) {
        sum += value_of(r, i);
        magnitudes += std::abs(value_of(r, i));
      }
      ASSERT_LE(std::abs(host[i] - sum), magnitudes * kRanks * 0x1p-24)
          << name_of(protocol) << " " << bytes << " bytes, rank " << rank << " element " << i;
    }
  }
}

TEST(GpuSizes, OneByte) {
  Gpus gpus(gpu(), settings());
  for (DeviceProtocol protocol : kAllProtocols) {
    uint8_t inputs[kRanks] = {200, 57}, outputs[kRanks] = {};
    GpuJob job{.algorithm = algorithm("two-shot"), .protocol = protocol, .count = 1, .type = trUint8};
    job.input_bytes = job.output_bytes = 1;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      job.inputs.push_back(reinterpret_cast<const std::byte*>(&inputs[rank]));
      job.outputs.push_back(reinterpret_cast<std::byte*>(&outputs[rank]));
    }
    ASSERT_EQ(gpus.run(job), "");
    for (uint8_t output : outputs) EXPECT_EQ(output, 1) << name_of(protocol);
  }
}

TEST(GpuSizes, FourBytesToOneGibibyte) {
  size_t largest = 0;
  for (size_t bytes : {size_t{4}, size_t{20}, size_t{1000}, size_t{4096}, size_t{65540}, size_t{1} << 20,
                       (size_t{16} << 20) + 12, size_t{64} << 20, size_t{256} << 20, size_t{1} << 30}) {
    for (DeviceProtocol protocol : kAllProtocols) {
      // Protocols for small messages, where they are used and well beyond.
      if (protocol == DeviceProtocol::kLl && bytes > 1 << 20) continue;
      if (protocol == DeviceProtocol::kLl128 && bytes > 64 << 20) continue;
      try {
        ASSERT_NO_FATAL_FAILURE(check_floats(protocol, bytes / 4));
        largest = bytes;
      } catch (const std::bad_alloc&) {
        std::printf("the memory goes up to %zu bytes\n", largest);
        EXPECT_GE(largest, size_t{1} << 20);
        return;
      }
    }
  }
}

// The counters of the FIFOs lie in memory of the GPU: a launch is repeated as it was captured.
TEST(GpuGraphs, CapturedLaunchesAreReplayed) {
  constexpr size_t kCount = 5000;
  for (DeviceProtocol protocol : kAllProtocols) {
    Gpus gpus(gpu(), settings());
    GpuJob job{.algorithm = algorithm("two-shot"), .protocol = protocol, .count = kCount};
    std::vector<Allocation> memory;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      job.inputs.push_back(memory.emplace_back(gpu(), kCount * 4).data());
      job.outputs.push_back(memory.emplace_back(gpu(), kCount * 4).data());
    }
    Prepared prepared;
    ASSERT_EQ(gpus.prepare(job, &prepared), "");
    // Once without a graph: kernels are loaded before something captures.
    ASSERT_EQ(gpus.launch(prepared), "");
    std::vector<ProgramGraph*> captured;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      DeviceStream stream = gpu()->stream(rank);
      EXPECT_FALSE(gpu()->device().is_capturing(stream));
      begin_capture(stream);
      EXPECT_TRUE(gpu()->device().is_capturing(stream));
      const DeviceLaunch launch = launch_of(prepared.calls[rank]);
      EXPECT_TRUE(gpu()->device().launch(launch, prepared.type, protocol, gpus.settings().threads, stream).ok());
      captured.push_back(end_capture(stream));
    }
    std::vector<int32_t> host(kCount);
    for (int replay = 0; replay < 10; ++replay) {
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        for (size_t i = 0; i < kCount; ++i) host[i] = static_cast<int32_t>(i * (rank + 1)) + replay;
        gpu()->copy(const_cast<std::byte*>(job.inputs[rank]), host.data(), kCount * 4);
      }
      for (uint32_t rank = 0; rank < kRanks; ++rank) launch_graph(captured[rank], gpu()->stream(rank));
      ASSERT_EQ(gpu()->finish(prepared.calls), "") << name_of(protocol) << " replay " << replay;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        gpu()->copy(host.data(), job.outputs[rank], kCount * 4);
        for (size_t i = 0; i < kCount; ++i)
          ASSERT_EQ(host[i], static_cast<int32_t>(3 * i) + 2 * replay)
              << name_of(protocol) << " replay " << replay << " rank " << rank << " element " << i;
      }
    }
    for (ProgramGraph* graph : captured) destroy_graph(graph);
  }
}

}  // namespace
}  // namespace treering::cuda
