// The device code of the CUDA executor, run on the CPU: every schedule, protocol, type and operation, with 2 to 8 ranks
// whose blocks are threads of this process.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "executor/cuda/cpu_gpus.h"
#include "executor/reduce.h"

namespace treering::cuda {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint32_t kRankCounts[] = {2, 3, 5};
#else
constexpr uint32_t kRankCounts[] = {2, 3, 4, 5, 8};
#endif
constexpr DeviceProtocol kAllProtocols[] = {DeviceProtocol::kLl, DeviceProtocol::kLl128, DeviceProtocol::kSimple};
const char* name_of(DeviceProtocol protocol) {
  return protocol == DeviceProtocol::kLl ? "LL" : protocol == DeviceProtocol::kLl128 ? "LL128" : "Simple";
}

uint32_t random_seed() {
  static const uint32_t seed = std::random_device()();
  return seed;
}

// The buffers of all ranks, and what their outputs must be: by the rows of the collective, and nothing else.
struct Buffers {
  std::vector<Bytes> inputs, outputs, expected;
  GpuJob job;

  Buffers(const Algorithm& algorithm, uint32_t ranks, size_t count, uint32_t root, bool in_place, std::mt19937* random)
      : info_(info_of(algorithm.collective)), ranks_(ranks), count_(count), root_(root) {
    job.algorithm = &algorithm;
    job.count = count;
    job.root = root;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(bytes_of(info_.input_index));
      for (std::byte& b : inputs.back()) b = static_cast<std::byte>((*random)());
      outputs.emplace_back(bytes_of(info_.output_index), std::byte{0xEE});
    }
    expected = outputs;
    in_place_ = in_place && inputs[0].size() == outputs[0].size() && info_.input_index == info_.output_index;
    if (in_place_) outputs = expected = inputs;
    expect();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      job.outputs.push_back(outputs[rank].data());
      job.inputs.push_back(in_place_ ? outputs[rank].data() : inputs[rank].data());
    }
  }

  void check(const std::string& what) const {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      const auto differ = std::mismatch(outputs[rank].begin(), outputs[rank].end(), expected[rank].begin());
      ASSERT_EQ(differ.first, outputs[rank].end())
          << what << ": rank " << rank << " byte " << differ.first - outputs[rank].begin() << " of "
          << outputs[rank].size();
    }
  }

 private:
  size_t bytes_of(BlockIndex index) const { return (index == BlockIndex::kAlone ? 1 : ranks_) * count_ * 4 + 4; }
  uint32_t* at(std::vector<Bytes>* buffers, uint32_t rank, BlockIndex index, uint32_t part) const {
    return reinterpret_cast<uint32_t*>((*buffers)[rank].data()) + block_index(index, part, ranks_) * count_;
  }
  // Wrapping sums of 32-bit integers; what moves only is a sum of one.
  void expect() {
    std::vector<uint32_t> sum(count_);
    for (uint32_t part = 0; part < info_.part_count(ranks_); ++part) {
      std::fill(sum.begin(), sum.end(), 0);
      for (uint32_t rank = 0; rank < ranks_; ++rank) {
        if (!info_.contributes({rank, part, ranks_, root_})) continue;
        const uint32_t* operand = at(&inputs, rank, info_.input_index, part);
        for (size_t i = 0; i < count_; ++i) sum[i] += operand[i];
      }
      for (uint32_t rank = 0; rank < ranks_; ++rank)
        if (info_.stores({rank, part, ranks_, root_}) && info_.collective != Collective::kBarrier)
          std::copy(sum.begin(), sum.end(), at(&expected, rank, info_.output_index, part));
    }
  }

  const CollectiveInfo& info_;
  uint32_t ranks_;
  size_t count_;
  uint32_t root_;
  bool in_place_ = false;
};

class EveryAlgorithm : public ::testing::TestWithParam<const Algorithm*> {};

TEST_P(EveryAlgorithm, MovesAndReducesWhatTheCollectiveSays) {
  const Algorithm& algorithm = *GetParam();
  std::mt19937 random(random_seed());
  for (uint32_t ranks : kRankCounts) {
    if (ranks < algorithm.min_ranks || ranks > algorithm.max_ranks) continue;
    for (uint32_t channels : {1u, 2u})
      for (DeviceProtocol protocol : kAllProtocols) {
        const uint32_t root = random() % ranks;
        const Schedule schedule =
            algorithm.build(flat_plan(ranks), 0, Shape{0, channels, algorithm.pipelined ? 2u : 1u, root});
        // Depth 1 wherever the schedule allows it: what passes there passes at every depth.
        const uint32_t depth = channels == 1 ? schedule.fifo_depth : schedule.fifo_depth + 3;
        CpuGpus gpus({.ranks = ranks,
                      .channels = channels,
                      .depth = depth,
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

INSTANTIATE_TEST_SUITE_P(Device, EveryAlgorithm, ::testing::ValuesIn(all_algorithms()), [](const auto& info) {
  std::string name = std::string(info_of(info.param->collective).name) + "_" + info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

Bytes random_bits(size_t bytes, trDataType_t type, std::mt19937* random) {
  Bytes made(bytes);
  for (std::byte& b : made) b = static_cast<std::byte>((*random)() % (type == trBool ? 3 : 256));
  return made;
}

template <class T>
bool both_nan(const std::byte* a, const std::byte* b) {
  T x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  return std::isnan(x) && std::isnan(y);
}

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

// On any bits at all, the device's arithmetic gives what the host's kernels give.
TEST(DeviceArithmetic, EqualsTheHosts) {
  std::mt19937 random(random_seed());
  constexpr size_t kCount = 1003;
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps) {
      if (!supports(type, op) || type.type == trBool) continue;
      for (size_t sources : {1u, 2u, 5u})
        for (bool scaled : {false, true}) {
          if (scaled && op.op != trSum) continue;
          std::vector<Bytes> operands;
          std::vector<const std::byte*> addresses;
          std::vector<const void*> host_addresses;
          for (size_t s = 0; s < sources; ++s) operands.push_back(random_bits(kCount * type.size, type.type, &random));
          for (const Bytes& operand : operands) {
            addresses.push_back(operand.data());
            host_addresses.push_back(operand.data());
          }
          const Bytes scale = random_bits(16, type.type, &random);
          Bytes device(kCount * type.size), host(kCount * type.size);
          const uint32_t divisor = op.op == trAvg ? 3 : 1;
          combine_on_cpu(type.type, op.op, addresses, kCount, divisor, scaled ? scale.data() : nullptr, device.data());
          void* destination = host.data();
          ReduceCall call;
          call.type = type.type;
          call.op = op.op;
          call.divisor = divisor;
          call.sources = host_addresses.data();
          call.source_count = sources;
          call.destinations = &destination;
          call.destination_count = 1;
          call.count = kCount;
          call.scaled_sources = scaled ? uint64_t{1} << (sources - 1) : 0;
          call.scale = scaled ? scale.data() : nullptr;
          reduce(call);
          for (size_t i = 0; i < kCount; ++i)
            ASSERT_TRUE(same_element(type.type, device.data() + i * type.size, host.data() + i * type.size))
                << type.name << " " << op.name << " sources " << sources << (scaled ? " scaled" : "") << " element "
                << i << " seed " << random_seed();
        }
    }
}

// Every type and operation through every protocol: the ranks agree, and agree with the host's kernels in ring order of a
// two-shot allreduce, where each element is the combination of all inputs in the order of the ranks.
TEST(DeviceTypes, EveryTypeOperationAndProtocol) {
  std::mt19937 random(random_seed());
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "two-shot", &algorithm).ok());
  constexpr uint32_t kRanks = 3;
  constexpr size_t kCount = 333;
  CpuGpus gpus({.ranks = kRanks, .channels = 2, .depth = 2, .slot_bytes = 1024});
  for (const DataTypeInfo& type : kDataTypes)
    for (const OpInfo& op : kOps) {
      if (!supports(type, op) || type.type == trBool) continue;
      for (DeviceProtocol protocol : kAllProtocols) {
        if (protocol == DeviceProtocol::kLl128 && type.size > 8) continue;
        std::vector<Bytes> inputs, outputs;
        GpuJob job{.algorithm = algorithm, .protocol = protocol, .count = kCount, .type = type.type, .op = op.op};
        std::vector<const void*> sources;
        for (uint32_t rank = 0; rank < kRanks; ++rank) {
          inputs.push_back(random_bits(kCount * type.size, type.type, &random));
          outputs.emplace_back(kCount * type.size);
        }
        for (uint32_t rank = 0; rank < kRanks; ++rank) {
          job.inputs.push_back(inputs[rank].data());
          job.outputs.push_back(outputs[rank].data());
          sources.push_back(inputs[rank].data());
        }
        const std::string what =
            std::string(type.name) + " " + op.name + " " + name_of(protocol) + " seed " + std::to_string(random_seed());
        ASSERT_EQ(gpus.run(job), "") << what;
        Bytes expected(kCount * type.size);
        void* destination = expected.data();
        ReduceCall call;
        call.type = type.type;
        call.op = op.op;
        call.divisor = op.op == trAvg ? kRanks : 1;
        call.sources = sources.data();
        call.source_count = kRanks;
        call.destinations = &destination;
        call.destination_count = 1;
        call.count = kCount;
        reduce(call);
        for (uint32_t rank = 0; rank < kRanks; ++rank)
          for (size_t i = 0; i < kCount; ++i)
            ASSERT_TRUE(same_element(type.type, outputs[rank].data() + i * type.size, expected.data() + i * type.size))
                << what << " rank " << rank << " element " << i;
      }
    }
}

// Old words of a slot never look new: around the numbers where the flags of LL wrap, and where slots are filled for that.
TEST(DeviceProtocols, CountersWrap) {
  std::mt19937 random(random_seed());
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "one-shot", &algorithm).ok());
  constexpr uint32_t kOldFlag = 0x77777777;
  for (uint64_t start : {(uint64_t{1} << 31) - 2, (uint64_t{1} << 32) - 2, (uint64_t{1} << 40) - 2})
    for (DeviceProtocol protocol : kAllProtocols) {
      CpuGpus gpus({.ranks = 2, .channels = 1, .depth = 3, .slot_bytes = 16384});
      const size_t words = 3 * ll_bytes(kLlSlotBytes) / 8;
      for (uint32_t rank : {0u, 1u}) {
        Link& link = gpus.link(rank, 0, 1 - rank);
        link.posted = link.received = start;
        *link.in_consumed = start;
        std::fill_n(link.out_ll, words, uint64_t{kOldFlag} << 32);
        std::fill_n(link.out_flags, 3, 12345);
      }
      for (int turn = 0; turn < 8; ++turn) {
        Buffers buffers(*algorithm, 2, 1 + random() % 500, 0, false, &random);
        buffers.job.protocol = protocol;
        ASSERT_EQ(gpus.run(buffers.job), "");
        ASSERT_NO_FATAL_FAILURE(buffers.check(name_of(protocol)));
      }
      if (protocol != DeviceProtocol::kLl) continue;
      for (uint32_t rank : {0u, 1u})
        for (size_t word = 0; word < words; ++word)
          ASSERT_NE(gpus.link(rank, 0, 1 - rank).in_ll[word] >> 32, kOldFlag) << "word " << word << " was never filled";
    }
}

TEST(DeviceLanes, SendsAndReceivesInAnyOrder) {
  std::mt19937 random(random_seed());
  for (uint32_t ranks : kRankCounts)
    for (uint32_t channels : {1u, 3u})
      for (uint32_t depth : {1u, 4u}) {
        CpuGpus gpus({.ranks = ranks,
                      .channels = channels,
                      .depth = depth,
                      .slot_bytes = 512,
                      .delays = static_cast<uint32_t>(random() | 1)});
        // bytes[s][d]; lanes of a pair lie on the same channel on both sides: they are listed by the offset of the peer.
        std::vector<std::vector<Bytes>> sent(ranks), got(ranks);
        std::vector<std::vector<DeviceLane>> lanes(ranks);
        for (uint32_t s = 0; s < ranks; ++s)
          for (uint32_t d = 0; d < ranks; ++d)
            sent[s].push_back(random_bits(random() % 4 == 0 ? 0 : random() % 3000, trUint8, &random));
        for (uint32_t d = 0; d < ranks; ++d)
          for (uint32_t s = 0; s < ranks; ++s) got[d].emplace_back(sent[s][d].size() + 1, std::byte{0xEE});
        for (uint32_t rank = 0; rank < ranks; ++rank)
          for (uint32_t channel = 0; channel < channels; ++channel) {
            // Each channel's lanes in an order of its own; the lists of the channels are interleaved and of one length.
            std::vector<DeviceLane> mine;
            for (uint32_t peer = 0; peer < ranks; ++peer) {
              if ((rank + peer) % channels != channel) continue;
              if (peer == rank) {
                mine.push_back({sent[rank][rank].data(), got[rank][rank].data(), sent[rank][rank].size(), rank,
                                kCopyLane, kNoLane});
                continue;
              }
              mine.push_back({sent[rank][peer].data(), nullptr, sent[rank][peer].size(), peer, kSendLane, kNoLane});
              mine.push_back({nullptr, got[rank][peer].data(), sent[peer][rank].size(), peer, kReceiveLane, kNoLane});
            }
            std::shuffle(mine.begin(), mine.end(), random);
            const size_t rows = 2 * ranks;
            mine.resize(rows, {nullptr, nullptr, 0, rank, kCopyLane, kNoLane});
            lanes[rank].resize(rows * channels);
            for (size_t row = 0; row < rows; ++row) lanes[rank][row * channels + channel] = mine[row];
          }
        ASSERT_EQ(gpus.run_lanes(lanes), "") << "seed " << random_seed();
        for (uint32_t d = 0; d < ranks; ++d)
          for (uint32_t s = 0; s < ranks; ++s) {
            Bytes expected = sent[s][d];
            expected.push_back(std::byte{0xEE});
            ASSERT_EQ(got[d][s], expected) << "from " << s << " to " << d << " ranks " << ranks << " channels "
                                           << channels << " depth " << depth << " seed " << random_seed();
          }
      }
}

TEST(DeviceFailures, AnotherCallIsNamed) {
  std::mt19937 random(random_seed());
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "ring", &algorithm).ok());
  CpuGpus gpus({.ranks = 2});
  gpus.signatures = {1, 2};
  Buffers buffers(*algorithm, 2, 100, 0, false, &random);
  EXPECT_NE(gpus.run(buffers.job), "");
  for (uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(gpus.status(rank).failure, static_cast<uint32_t>(DeviceFailure::kCallsDiffer));
    EXPECT_EQ(gpus.status(rank).peer, 1 - rank);
  }
}

// A peer that never comes: every wait of every protocol ends when the host says so.
TEST(DeviceFailures, AbortEndsEveryWait) {
  std::mt19937 random(random_seed());
  for (const char* name : {"ring", "two-shot", "one-shot"})
    for (DeviceProtocol protocol : kAllProtocols) {
      const Algorithm* algorithm = nullptr;
      ASSERT_TRUE(find_algorithm(Collective::kAllReduce, name, &algorithm).ok());
      CpuGpus gpus({.ranks = 3, .channels = 2});
      // Nothing arrives at rank 1, and what it sends is never consumed.
      for (uint32_t channel : {0u, 1u})
        for (uint32_t peer : {0u, 2u}) gpus.link(1, channel, peer).received += 1000;
      Buffers buffers(*algorithm, 3, 3000, 0, false, &random);
      buffers.job.protocol = protocol;
      gpus.meanwhile = [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        for (uint32_t rank = 0; rank < 3; ++rank) __atomic_store_n(&gpus.status(rank).abort, 1u, __ATOMIC_RELEASE);
      };
      EXPECT_NE(gpus.run(buffers.job), "") << name << " " << name_of(protocol);
      EXPECT_EQ(gpus.status(1).failure, static_cast<uint32_t>(DeviceFailure::kAborted))
          << name << " " << name_of(protocol);
    }
}

}  // namespace
}  // namespace treering::cuda
