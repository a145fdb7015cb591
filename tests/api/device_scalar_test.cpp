// SPDX-License-Identifier: Apache-2.0
// Pre-multiplied sums whose scalar is read where it lies, when the operation runs: by kernels, staged, on the host.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "support/cpu_device.h"
#include "support/device_ranks.h"

namespace treering::testing {
namespace {

constexpr int kPiece = 64 << 10;

struct Place {
  const char* name;
  std::vector<int> devices;
  bool kernels;
  bool host_scalar;
};
const Place kPlaces[] = {{"kernels", {0, 1, 2}, true, false},    {"kernels_host_scalar", {0, 1}, true, true},
                         {"staged", {0, -1, 2}, false, false},   {"staged_host_scalar", {-1, 1}, false, true},
                         {"one_rank", {3}, false, false},        {"no_gpu", {-1, -1}, false, true},
                         {"kernels_shared", {0, 0}, true, false}};

trConfig_t in_pieces() {
  trConfig_t config = by_kernels();
  config.device_piece_bytes = kPiece;
  return config;
}

class EveryPlace : public ::testing::TestWithParam<Place> {
 protected:
  EveryPlace()
      : ranks_(GetParam().devices, 60'000, in_pieces()), scalars_(ranks_.buffers(1, 0, GetParam().host_scalar)) {
    for (int r = 0; r < ranks_.count(); ++r) {
      ops_.emplace_back();
      EXPECT_EQ(trRedOpCreatePreMulSumDevice(&ops_.back(), scalars_[r].data(), trInt32, ranks_.comm(r)), trSuccess)
          << trGetLastError(nullptr);
    }
  }
  bool on_gpu(int rank) const { return ranks_.device(rank) >= 0; }
  int gpus() const {
    int count = 0;
    for (int r = 0; r < ranks_.count(); ++r) count += on_gpu(r) ? 1 : 0;
    return count;
  }

  DeviceRanks ranks_;
  std::vector<Buffer> scalars_;  // rank + 1 at first
  std::vector<trRedOp_t> ops_;
};

void increment(void* scalar) { ++*static_cast<int*>(scalar); }

// One thread drives all ranks, and each scalar is written behind a collective whose other ranks are yet to call.
TEST_P(EveryPlace, IsReadInStreamOrder) {
  const int n = ranks_.count();
  for (size_t count : {size_t{1000}, size_t{200'003}}) {  // whole, and in pieces
    auto in = ranks_.buffers(count), middle = ranks_.buffers(count), out = ranks_.buffers(count);
    const uint64_t launched = cpu_launches();
    for (int r = 0; r < n; ++r) {
      const auto call = [&](const Buffer& from, const Buffer& to, trRedOp_t op) {
        return trAllReduce(from.data(), to.data(), count, trInt32, op, ranks_.comm(r), ranks_.stream(r));
      };
      ASSERT_EQ(call(in[r], middle[r], trMax), trSuccess);
      if (on_gpu(r)) run_in_cpu_stream(ranks_.cuda(r), increment, scalars_[r].data());
      ASSERT_EQ(call(middle[r], out[r], ops_[r]), trSuccess) << trGetLastError(nullptr);
    }
    ranks_.synchronize();
    int sum = 0;
    for (const Buffer& scalar : scalars_) sum += scalar.data()[0] * n;
    for (const Buffer& buffer : out) ASSERT_TRUE(buffer.all_equal([&](size_t) { return sum; })) << "count " << count;
    EXPECT_EQ(cpu_launches() - launched, GetParam().kernels ? 2u * static_cast<uint64_t>(n) : 0u);
  }
}

// Nothing waits in between: every launch finds what the stream has written before it.
TEST_P(EveryPlace, IsReadByEveryLaunchOfAGraph) {
  const int n = ranks_.count();
  constexpr int kTurns = 4;
  for (size_t count : {size_t{1000}, size_t{200'003}}) {
    auto data = ranks_.buffers(count);
    for (Buffer& buffer : data) std::fill_n(buffer.data(), count, 1);
    for (Buffer& scalar : scalars_) *scalar.data() = 0;
    std::vector<ProgramGraph*> graphs(static_cast<size_t>(n));
    const auto call = [&](int r) {
      return trAllReduce(data[r].data(), data[r].data(), count, trInt32, ops_[r], ranks_.comm(r), ranks_.stream(r));
    };
    for (int r = 0; r < n; ++r) {
      if (!on_gpu(r)) {
        *scalars_[r].data() = 1;
        continue;
      }
      begin_capture(ranks_.cuda(r));
      ASSERT_EQ(call(r), trSuccess) << trGetLastError(nullptr);
      graphs[r] = end_capture(ranks_.cuda(r));
    }
    int expected = 1;
    for (int turn = 1; turn <= kTurns; ++turn) {
      for (int r = 0; r < n; ++r) {
        if (on_gpu(r)) {
          run_in_cpu_stream(ranks_.cuda(r), increment, scalars_[r].data());
          launch_graph(graphs[r], ranks_.cuda(r));
        } else {
          ASSERT_EQ(call(r), trSuccess);
        }
      }
      expected *= gpus() * turn + n - gpus();
    }
    ranks_.synchronize();
    for (const Buffer& buffer : data)
      ASSERT_TRUE(buffer.all_equal([&](size_t) { return expected; })) << "count " << count;
    for (ProgramGraph* graph : graphs)
      if (graph != nullptr) destroy_graph(graph);
  }
}

TEST_P(EveryPlace, BlockingCallsReadItAnew) {
  const int n = ranks_.count();
  auto in = ranks_.buffers(1000), out = ranks_.buffers(1000);
  for (int factor : {3, 7}) {
    for (Buffer& scalar : scalars_) *scalar.data() = factor;
    ranks_.run(true, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(in[r].data(), out[r].data(), 1000, trInt32, ops_[r], comm, stream);
    });
    for (const Buffer& buffer : out) ASSERT_TRUE(buffer.all_equal([&](size_t) { return factor * n * (n + 1) / 2; }));
  }
}

// Buffers of the host: where the scalar lies decides nothing about the result.
TEST_P(EveryPlace, BuffersOfTheHost) {
  const int n = ranks_.count();
  auto in = ranks_.buffers(1000, 0, true), out = ranks_.buffers(1000, 0, true);
  for (bool blocking : {false, true}) {
    for (Buffer& scalar : scalars_) *scalar.data() = blocking ? 5 : 6;
    ranks_.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(in[r].data(), out[r].data(), 1000, trInt32, ops_[r], comm, stream);
    });
    for (const Buffer& buffer : out)
      ASSERT_TRUE(buffer.all_equal([&](size_t) { return (blocking ? 5 : 6) * n * (n + 1) / 2; }));
  }
}

// Calls that hold it run with it.
TEST_P(EveryPlace, DestroyedBeforeItRuns) {
  const int n = ranks_.count();
  auto data = ranks_.buffers(1000);
  for (Buffer& scalar : scalars_) *scalar.data() = 2;
  for (int r = 0; r < n; ++r) {
    ASSERT_EQ(trAllReduce(data[r].data(), data[r].data(), 1000, trInt32, ops_[r], ranks_.comm(r), ranks_.stream(r)),
              trSuccess);
    ASSERT_EQ(trRedOpDestroy(ops_[r], ranks_.comm(r)), trSuccess);
  }
  ranks_.synchronize();
  for (const Buffer& buffer : data) ASSERT_TRUE(buffer.all_equal([&](size_t) { return n * (n + 1); }));
}

INSTANTIATE_TEST_SUITE_P(Scalar, EveryPlace, ::testing::ValuesIn(kPlaces),
                         [](const auto& info) { return info.param.name; });

// Kernels do not read a scalar of the host; their buffers stay where they are all the same.
TEST(ScalarOfTheHost, IsCopiedAlone) {
  constexpr size_t kCount = 1'000'000;
  DeviceRanks ranks({0, 1}, 60'000, by_kernels());
  auto data = ranks.buffers(kCount), scalars = ranks.buffers(1, 0, true);
  trRedOp_t ops[2];
  for (int r : {0, 1})
    ASSERT_EQ(trRedOpCreatePreMulSumDevice(&ops[r], scalars[r].data(), trInt32, ranks.comm(r)), trSuccess);
  reset_cpu_pinned_peak();
  const size_t before = cpu_pinned_peak();
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(data[r].data(), data[r].data(), kCount, trInt32, ops[r], comm, stream);
  });
  for (const Buffer& buffer : data) ASSERT_TRUE(buffer.all_equal([](size_t) { return 1 + 4; }));
  EXPECT_LT(cpu_pinned_peak() - before, kCount) << "the buffers went through pinned memory";
}

// The operation waits in a stream of the host when its scalar is written.
TEST(ScalarOfTheHost, IsReadWhenTheStreamGetsThere) {
  DeviceRanks ranks({-1, -1});
  auto first = ranks.buffers(1), data = ranks.buffers(1), scalars = ranks.buffers(1);
  trRedOp_t ops[2];
  for (int r : {0, 1}) {
    ASSERT_EQ(trRedOpCreatePreMulSumDevice(&ops[r], scalars[r].data(), trInt32, ranks.comm(r)), trSuccess);
    ASSERT_EQ(trAllReduce(first[r].data(), first[r].data(), 1, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
              trSuccess);
    if (r == 0) {
      ASSERT_EQ(trAllReduce(data[0].data(), data[0].data(), 1, trInt32, ops[0], ranks.comm(0), ranks.stream(0)),
                trSuccess);
      *scalars[0].data() = 10;  // behind the first, which needs rank 1
    }
  }
  ASSERT_EQ(trAllReduce(data[1].data(), data[1].data(), 1, trInt32, ops[1], ranks.comm(1), ranks.stream(1)), trSuccess);
  ranks.synchronize();
  for (const Buffer& buffer : data) EXPECT_EQ(*buffer.data(), 10 * 1 + 2 * 2);
}

// In a group: what reads a scalar is not fused with what comes before the call that writes it.
TEST(ScalarOfTheHost, OrdersTheCallsOfAGroup) {
  DeviceRanks ranks({-1, -1});
  auto a = ranks.buffers(10), b = ranks.buffers(10), scalars = ranks.buffers(1);
  trRedOp_t ops[2];
  for (int r : {0, 1})
    ASSERT_EQ(trRedOpCreatePreMulSumDevice(&ops[r], scalars[r].data(), trInt32, ranks.comm(r)), trSuccess);
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    trResult_t result = trAllReduce(a[r].data(), a[r].data(), 10, trInt32, ops[r], comm, stream);
    if (result == trSuccess)
      result = trAllReduce(scalars[r].data(), scalars[r].data(), 1, trInt32, trSum, comm, stream);
    return result != trSuccess ? result : trAllReduce(b[r].data(), b[r].data(), 10, trInt32, ops[r], comm, stream);
  });
  for (int r : {0, 1}) {
    EXPECT_TRUE(a[r].all_equal([](size_t) { return 1 * 1 + 2 * 2; }));
    EXPECT_TRUE(b[r].all_equal([](size_t) { return 3 * (1 + 2); }));
  }
}

TEST(ScalarArguments, WrongOnesAreNamed) {
  const auto error_of = [](trResult_t result) {
    return result == trSuccess ? std::string("success") : std::string(trGetLastError(nullptr));
  };
  DeviceRanks ranks({0, -1});
  Buffer scalar(0, 1, 1), host(-1, 10, 1);
  trRedOp_t op = trSum;
  const auto create = [&](trRedOp_t* made, const void* at, trDataType_t type, int rank) {
    return error_of(trRedOpCreatePreMulSumDevice(made, at, type, ranks.comm(rank)));
  };
  EXPECT_EQ(create(nullptr, scalar.data(), trInt32, 0), "trRedOpCreatePreMulSumDevice: op is NULL");
  EXPECT_EQ(create(&op, nullptr, trInt32, 0), "trRedOpCreatePreMulSumDevice: scalar is NULL");
  EXPECT_NE(
      create(&op, scalar.data(), trBool, 0).find("trRedOpCreatePreMulSumDevice: datatype is bool; give an integer"),
      std::string::npos);
  EXPECT_NE(create(&op, scalar.data(), trInt32, 1).find("scalar is memory of a GPU, but the communicator has no GPU"),
            std::string::npos);
  ASSERT_EQ(create(&op, scalar.data(), trInt32, 0), "success");
  EXPECT_NE(error_of(trAllReduce(host.data(), host.data(), 10, trFloat32, op, ranks.comm(0), nullptr))
                .find("datatype is float, but op was made for int32"),
            std::string::npos);
  trStream_t stream = nullptr;
  ASSERT_EQ(trStreamCreate(&stream), trSuccess);
  EXPECT_NE(error_of(trAllReduce(host.data(), host.data(), 10, trInt32, op, ranks.comm(0), stream))
                .find("the operation's scalar, is memory of a GPU, but stream is the host's"),
            std::string::npos);
  EXPECT_EQ(trStreamDestroy(stream), trSuccess);
}

}  // namespace
}  // namespace treering::testing
