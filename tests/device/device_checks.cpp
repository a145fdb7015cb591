// SPDX-License-Identifier: Apache-2.0
#include "device/device_checks.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "executor/reduce/reduce.h"
#include "support/seed.h"

namespace treering::cuda {
namespace {

// A number that a block may have.
uint32_t some_threads(const Machine& machine, std::mt19937* random) {
  return machine.threads(32 * (1 + static_cast<uint32_t>((*random)()) % 16));
}

}  // namespace

const char* name_of(DeviceProtocol protocol) {
  if (protocol == DeviceProtocol::kLl) return "LL";
  return protocol == DeviceProtocol::kLl128 ? "LL128" : "Simple";
}

uint64_t random_seed() {
  static const uint64_t seed = test_seed();
  return seed;
}

void check_algorithm(Machine* machine, const Algorithm& algorithm, const std::vector<uint32_t>& rank_counts) {
  std::mt19937 random(random_seed());
  for (uint32_t ranks : rank_counts) {
    if (ranks < algorithm.min_ranks || ranks > algorithm.max_ranks) continue;
    for (uint32_t channels : {1u, 2u})
      for (DeviceProtocol protocol : kAllProtocols) {
        const uint32_t root = random() % ranks;
        const Schedule schedule =
            algorithm.build(flat_plan(ranks), 0, Shape{0, channels, algorithm.pipelined ? 2u : 1u, root});
        // Depth 1 wherever the schedule allows it: what passes there passes at every depth.
        const uint32_t depth = channels == 1 ? schedule.fifo_depth : schedule.fifo_depth + 3;
        Gpus gpus(machine, {.ranks = ranks,
                            .channels = channels,
                            .depth = depth,
                            .threads = some_threads(*machine, &random),
                            .slot_bytes = 4096,
                            .delays = static_cast<uint32_t>(random() | 1)});
        for (size_t count : {size_t{1}, size_t{70}, size_t{3001}})
          for (bool in_place : {false, true}) {
            if (in_place && !algorithm.input_used_once && info_of(algorithm.collective).parts == Parts::kPairs)
              continue;
            Buffers buffers(algorithm, ranks, count, root, in_place, &random);
            buffers.job.protocol = protocol;
            const std::string what = std::string(algorithm.name) + " ranks " + std::to_string(ranks) + " channels " +
                                     std::to_string(channels) + " " + name_of(protocol) + " count " +
                                     std::to_string(count) + (in_place ? " in place" : "") + " seed " +
                                     std::to_string(random_seed());
            const std::string failure = gpus.run(buffers.job);
            if (failure == "the messages do not fit" && protocol == DeviceProtocol::kLl128) continue;
            ASSERT_EQ(failure, "") << what;
            ASSERT_NO_FATAL_FAILURE(buffers.check(what));
          }
      }
  }
}

std::vector<const Algorithm*> all_algorithms() {
  std::vector<const Algorithm*> all;
  for (const CollectiveInfo& info : collectives()) {
    if (info.collective == Collective::kBarrier) continue;  // on a device it is an allreduce of one element
    for (const Algorithm* algorithm : algorithms_of(info.collective)) all.push_back(algorithm);
  }
  return all;
}

std::string test_name(const Algorithm& algorithm) {
  std::string name = std::string(info_of(algorithm.collective).name) + "_" + algorithm.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Bytes random_bits(size_t bytes, trDataType_t type, std::mt19937* random) {
  Bytes made(bytes);
  for (std::byte& b : made) b = static_cast<std::byte>((*random)() % (type == trBool ? 3 : 256));
  return made;
}

namespace {

template <class T>
bool both_nan(const std::byte* a, const std::byte* b) {
  T x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  return std::isnan(x) && std::isnan(y);
}

}  // namespace

// Equal bits, or both not a number: which NaN a sum of two gives is the processor's choice.
bool same_element(trDataType_t type, const std::byte* a, const std::byte* b) {
  const size_t size = find_type(type)->size;
  if (std::memcmp(a, b, size) == 0) return true;
  float x[2] = {}, y[2] = {};
  switch (type) {
    case trFloat32:
      return both_nan<float>(a, b);
    case trComplex64:
      return (both_nan<float>(a, b) || std::memcmp(a, b, 4) == 0) &&
             (both_nan<float>(a + 4, b + 4) || std::memcmp(a + 4, b + 4, 4) == 0);
    case trFloat64:
      return both_nan<double>(a, b);
    case trComplex128:
      return (both_nan<double>(a, b) || std::memcmp(a, b, 8) == 0) &&
             (both_nan<double>(a + 8, b + 8) || std::memcmp(a + 8, b + 8, 8) == 0);
    default:
      break;
  }
  if (!find_type(type)->narrow_float) return false;
  for (auto [from, to] : {std::pair{a, x}, std::pair{b, y}}) {
    const void* source = from;
    void* destination = to;
    ReduceCall widen{.type = type,
                     .sources = &source,
                     .source_count = 1,
                     .destinations = &destination,
                     .destination_count = 1,
                     .wide_destinations = 1,
                     .count = 1};
    reduce(widen);
  }
  return std::isnan(x[0]) && std::isnan(y[0]);
}

namespace {

enum class Scale { kNone, kInCall, kInMemory };

// An allreduce of one type and operation: the ranks agree, and agree with the host's kernels in ring order of a
// two-shot allreduce, where each element is the combination of all inputs in the order of the ranks.
void check_type(Machine* machine, Gpus* gpus, const Algorithm* algorithm, const DataTypeInfo& type, const OpInfo& op,
                DeviceProtocol protocol, Scale scaled, std::mt19937* random) {
  constexpr size_t kCount = 333;
  const uint32_t ranks = gpus->settings().ranks;
  std::vector<Bytes> inputs, outputs;
  GpuJob job{.algorithm = algorithm,
             .protocol = protocol,
             .count = kCount,
             .type = type.type,
             .op = op.op,
             .input_bytes = kCount * type.size,
             .output_bytes = kCount * type.size};
  std::vector<const void*> sources;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    inputs.push_back(random_bits(kCount * type.size, type.type, random));
    outputs.emplace_back(kCount * type.size);
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    job.inputs.push_back(inputs[rank].data());
    job.outputs.push_back(outputs[rank].data());
    sources.push_back(inputs[rank].data());
  }
  const Bytes scale = random_bits(type.size, type.type, random);
  Allocation memory(machine, type.size);
  machine->copy(memory.data(), scale.data(), type.size);
  if (scaled == Scale::kInCall) job.scale = scale;
  if (scaled == Scale::kInMemory) job.scale_at = memory.data();
  const char* const by = scaled == Scale::kInCall ? " scaled" : " scaled from memory";
  const char* const how = scaled == Scale::kNone ? "" : by;
  const std::string what =
      std::string(type.name) + " " + op.name + how + " " + name_of(protocol) + " seed " + std::to_string(random_seed());
  ASSERT_EQ(gpus->run(job), "") << what;
  Bytes expected(kCount * type.size);
  void* destination = expected.data();
  const std::vector<uint8_t> flags(ranks, scaled == Scale::kNone ? 0 : kScaledSource);
  ReduceCall call;
  call.type = type.type;
  call.op = op.op;
  call.divisor = op.op == trAvg ? ranks : 1;
  call.sources = sources.data();
  call.source_count = ranks;
  call.source_flags = flags.data();
  call.scale = scaled == Scale::kNone ? nullptr : scale.data();
  call.destinations = &destination;
  call.destination_count = 1;
  call.count = kCount;
  reduce(call);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_TRUE(same_element(type.type, outputs[rank].data() + i * type.size, expected.data() + i * type.size))
          << what << " rank " << rank << " element " << i;
}

}  // namespace

void check_types(Machine* machine) {
  std::mt19937 random(random_seed());
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "two-shot", &algorithm).ok());
  Gpus gpus(machine,
            {.ranks = 3, .channels = 2, .depth = 2, .threads = some_threads(*machine, &random), .slot_bytes = 1024});
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps) {
      if (!supports(type, op) || type.type == trBool) continue;
      for (DeviceProtocol protocol : kAllProtocols) {
        if (protocol == DeviceProtocol::kLl128 && type.size > 8) continue;
        ASSERT_NO_FATAL_FAILURE(check_type(machine, &gpus, algorithm, type, op, protocol, Scale::kNone, &random));
        if (op.op != trSum) continue;
        for (Scale scaled : {Scale::kInCall, Scale::kInMemory})
          ASSERT_NO_FATAL_FAILURE(check_type(machine, &gpus, algorithm, type, op, protocol, scaled, &random));
      }
    }
}

void check_lanes(Machine* machine, const std::vector<uint32_t>& rank_counts) {
  std::mt19937 random(random_seed());
  for (uint32_t ranks : rank_counts)
    for (uint32_t channels : {1u, 3u})
      for (uint32_t depth : {1u, 4u}) {
        Gpus gpus(machine, {.ranks = ranks,
                            .channels = channels,
                            .depth = depth,
                            .threads = some_threads(*machine, &random),
                            .slot_bytes = 512,
                            .delays = static_cast<uint32_t>(random() | 1)});
        // bytes[s][d]; lanes of a pair lie on the same channel on both sides: they are listed by the offset of the
        // peer.
        std::vector<std::vector<Bytes>> sent(ranks), got(ranks);
        std::vector<std::vector<DeviceLane>> lanes(ranks);
        for (uint32_t s = 0; s < ranks; ++s)
          for (uint32_t d = 0; d < ranks; ++d)
            sent[s].push_back(random_bits(random() % 4 == 0 ? 0 : random() % 3000, trUint8, &random));
        for (uint32_t d = 0; d < ranks; ++d)
          for (uint32_t s = 0; s < ranks; ++s) got[d].emplace_back(sent[s][d].size() + 1, std::byte{0xEE});
        std::vector<Allocation> memory;
        const auto place = [&](Bytes* bytes) {
          if (machine->uses_host_memory()) return bytes->data();
          std::byte* to = memory.emplace_back(machine, bytes->size() + 1).data();
          machine->copy(to, bytes->data(), bytes->size());
          return to;
        };
        std::vector<std::vector<std::byte*>> from(ranks), into(ranks);
        for (uint32_t rank = 0; rank < ranks; ++rank)
          for (uint32_t peer = 0; peer < ranks; ++peer) {
            from[rank].push_back(place(&sent[rank][peer]));
            into[rank].push_back(place(&got[rank][peer]));
          }
        for (uint32_t rank = 0; rank < ranks; ++rank)
          for (uint32_t channel = 0; channel < channels; ++channel) {
            // Each channel's lanes in an order of its own; the lists of the channels are interleaved and of one length.
            std::vector<DeviceLane> mine;
            for (uint32_t peer = 0; peer < ranks; ++peer) {
              if ((rank + peer) % channels != channel) continue;
              if (peer == rank) {
                mine.push_back({from[rank][rank], into[rank][rank], sent[rank][rank].size(), rank, kCopyLane});
                continue;
              }
              mine.push_back({from[rank][peer], nullptr, sent[rank][peer].size(), peer, kSendLane});
              mine.push_back({nullptr, into[rank][peer], sent[peer][rank].size(), peer, kReceiveLane});
            }
            std::shuffle(mine.begin(), mine.end(), random);
            const size_t rows = 2 * ranks;
            mine.resize(rows, {nullptr, nullptr, 0, rank, kCopyLane});
            lanes[rank].resize(rows * channels);
            for (size_t row = 0; row < rows; ++row) lanes[rank][row * channels + channel] = mine[row];
          }
        ASSERT_EQ(gpus.run_lanes(lanes), "") << "seed " << random_seed();
        for (uint32_t d = 0; d < ranks; ++d)
          for (uint32_t s = 0; s < ranks; ++s) {
            if (into[d][s] != got[d][s].data()) machine->copy(got[d][s].data(), into[d][s], got[d][s].size());
            Bytes expected = sent[s][d];
            expected.push_back(std::byte{0xEE});
            ASSERT_EQ(got[d][s], expected) << "from " << s << " to " << d << " ranks " << ranks << " channels "
                                           << channels << " depth " << depth << " seed " << random_seed();
          }
      }
}

void check_other_call_is_named(Machine* machine) {
  std::mt19937 random(random_seed());
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "ring", &algorithm).ok());
  for (DeviceProtocol protocol : kAllProtocols) {
    Gpus gpus(machine, {.ranks = 2, .threads = machine->threads(64)});
    gpus.signatures = {1, 2};
    Buffers buffers(*algorithm, 2, 100, 0, false, &random);
    buffers.job.protocol = protocol;
    EXPECT_NE(gpus.run(buffers.job), "") << name_of(protocol);
    for (uint32_t rank : {0u, 1u}) {
      EXPECT_EQ(gpus.status(rank).failure, static_cast<uint32_t>(DeviceFailure::kCallsDiffer)) << name_of(protocol);
      EXPECT_EQ(gpus.status(rank).peer, 1 - rank) << name_of(protocol);
    }
  }
}

// A peer that never comes: every wait of every protocol ends when the host says so.
void check_abort(Machine* machine) {
  std::mt19937 random(random_seed());
  for (const char* name : {"ring", "two-shot", "one-shot"})
    for (DeviceProtocol protocol : kAllProtocols) {
      const Algorithm* algorithm = nullptr;
      ASSERT_TRUE(find_algorithm(Collective::kAllReduce, name, &algorithm).ok());
      Gpus gpus(machine, {.ranks = 3, .channels = 2, .threads = machine->threads(64)});
      // Nothing arrives at rank 1, and what it sends is never consumed.
      for (uint32_t channel : {0u, 1u})
        for (uint32_t peer : {0u, 2u}) gpus.fifos(1, channel, peer).received += 1000;
      Buffers buffers(*algorithm, 3, 3000, 0, false, &random);
      buffers.job.protocol = protocol;
      gpus.meanwhile = [&] {
        // A kernel that begins after the end moves nothing and has nothing to report.
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        for (uint32_t rank = 0; rank < 3; ++rank)
          for (uint32_t channel : {0u, 1u})
            while (__atomic_load_n(&gpus.status(rank).turn_begun[channel], __ATOMIC_ACQUIRE) == 0 &&
                   std::chrono::steady_clock::now() < deadline)
              std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        for (uint32_t rank = 0; rank < 3; ++rank) __atomic_store_n(&gpus.status(rank).abort, 1u, __ATOMIC_RELEASE);
      };
      EXPECT_NE(gpus.run(buffers.job), "") << name << " " << name_of(protocol);
      EXPECT_EQ(gpus.status(1).failure, static_cast<uint32_t>(DeviceFailure::kAborted))
          << name << " " << name_of(protocol);
    }
}

}  // namespace treering::cuda
