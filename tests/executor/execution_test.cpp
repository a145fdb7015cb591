// SPDX-License-Identifier: Apache-2.0
// Execution of every algorithm by one thread that drives all ranks in random order, with slots so small that
// a call is many slices and slots run out.
#include "executor/execution.h"

#include <cmath>
#include <cstring>

#include "executor/local_ranks.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering {
namespace {

struct Setting {
  const Algorithm* algorithm;
  uint32_t ranks;
  uint32_t channels;
  uint32_t tcp_streams;  // 0: connections within the process
};

// One thread drives everything: a sanitizer needs every kind of schedule, not every size.
std::vector<uint32_t> rank_counts() {
  return testing::kSanitized ? std::vector<uint32_t>{3, 8} : std::vector<uint32_t>{2, 3, 4, 5, 8, 9};
}
std::vector<uint32_t> channel_counts() {
  return testing::kSanitized ? std::vector<uint32_t>{2} : std::vector<uint32_t>{1, 2, 3, 4};
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Algorithm* algorithm : algorithms_of(Collective::kAllReduce))
    for (uint32_t ranks : rank_counts())
      for (uint32_t channels : channel_counts()) all.push_back({algorithm, ranks, channels, 0});
  for (const Algorithm* algorithm : algorithms_of(Collective::kAllReduce)) {
    all.push_back({algorithm, 3, 2, 1});
    all.push_back({algorithm, 5, 2, 3});
  }
  return all;
}

std::string setting_name(const ::testing::TestParamInfo<Setting>& info) {
  std::string name = std::string(info.param.algorithm->name) + "_ranks" + std::to_string(info.param.ranks) +
                     "_channels" + std::to_string(info.param.channels);
  if (info.param.tcp_streams > 0) name += "_tcp" + std::to_string(info.param.tcp_streams);
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

class EveryAlgorithm : public ::testing::TestWithParam<Setting> {
 protected:
  uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
};

// Wrapping sums of random integers are exact in any order.
std::vector<uint32_t> expected_sum(const std::vector<Bytes>& inputs, size_t count) {
  std::vector<uint32_t> sum(count);
  for (const Bytes& input : inputs)
    for (size_t i = 0; i < count; ++i) {
      uint32_t value;
      std::memcpy(&value, input.data() + i * sizeof value, sizeof value);
      sum[i] += value;
    }
  return sum;
}

void expect_sums(const JobBuffers& buffers, const std::vector<uint32_t>& expected, const std::string& what) {
  for (size_t rank = 0; rank < buffers.outputs.size(); ++rank) {
    const auto bytes = expected.size() * sizeof(uint32_t);
    if (bytes == 0 || std::memcmp(buffers.outputs[rank].data(), expected.data(), bytes) == 0) continue;
    for (size_t i = 0; i < expected.size(); ++i) {
      uint32_t value;
      std::memcpy(&value, buffers.outputs[rank].data() + i * sizeof value, sizeof value);
      ASSERT_EQ(value, expected[i]) << what << ": rank " << rank << " element " << i;
    }
  }
  if (buffers.in_place) return;
  for (size_t rank = 0; rank < buffers.outputs.size(); ++rank)
    ASSERT_EQ(buffers.outputs[rank].back(), std::byte{0xEE}) << what << ": written past the end";
}

TEST_P(EveryAlgorithm, SumsOddCountsThroughTinySlots) {
  auto [algorithm, ranks, channels, streams] = GetParam();
  for (size_t slot_bytes : {size_t{1024}, size_t{16384}}) {
    LocalRanks executor(ranks, channels, slot_bytes, false, streams);
    for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1023}, size_t{20'011}, size_t{60'001}})
      for (bool in_place : {false, true})
        for (uint32_t pipeline : {1u, 3u}) {
          if (pipeline > 1 && !algorithm->pipelined) continue;
          std::string what = "slot " + std::to_string(slot_bytes) + " count " + std::to_string(count) +
                             (in_place ? " in place" : "") + " pipeline " + std::to_string(pipeline) + " seed " +
                             std::to_string(seed_);
          JobBuffers buffers(ranks, trUint32, count, in_place, &random_);
          auto inputs = buffers.inputs;
          auto expected = expected_sum(inputs, count);
          LocalJob job = buffers.job(count, trUint32, trSum);
          job.chunk_bytes = random_() % 3 == 0 ? 512 : 0;
          executor.stream_from(random_() % 2 == 0 ? 4096 : SIZE_MAX);
          ASSERT_EQ(executor.run(*algorithm, job, pipeline, &random_), "") << what;
          ASSERT_NO_FATAL_FAILURE(expect_sums(buffers, expected, what));
          if (!in_place) {
            ASSERT_TRUE(same_bytes(buffers.inputs, inputs)) << what << ": the input was changed";
          }
        }
  }
}

// Integers that 16-bit floats hold exactly, whose sums they do not: with wide partials the sum is rounded
// once.
TEST_P(EveryAlgorithm, WidePartialsRoundOnce) {
  auto [algorithm, ranks, channels, streams] = GetParam();
  constexpr size_t kCount = 3001;
  LocalRanks executor(ranks, channels, 4096, true, streams);
  for (trDataType_t type : {trFloat16, trBfloat16}) {
    static constexpr uint8_t kWide = kWideSource;
    auto convert = [type = type](const std::vector<float>& values) {
      Bytes narrow(values.size() * 2 + 1);
      const void* source = values.data();
      void* destination = narrow.data();
      ReduceCall call;
      call.type = type;
      call.sources = &source;
      call.source_count = 1;
      call.source_flags = &kWide;
      call.destinations = &destination;
      call.destination_count = 1;
      call.count = values.size();
      reduce(call);
      return narrow;
    };
    uint32_t limit = type == trFloat16 ? 2048 : 256;
    for (bool in_place : {false, true}) {
      JobBuffers buffers(ranks, type, kCount, in_place, &random_);
      std::vector<float> sums(kCount, 0.0f);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        std::vector<float> values(kCount);
        for (size_t i = 0; i < kCount; ++i) sums[i] += values[i] = static_cast<float>(random_() % limit);
        (in_place ? buffers.outputs : buffers.inputs)[rank] = convert(values);
      }
      Bytes expected = convert(sums);
      LocalJob job = buffers.job(kCount, type, trSum);
      ASSERT_EQ(executor.run(*algorithm, job, 2, &random_), "") << "seed " << seed_;
      for (uint32_t rank = 0; rank < ranks; ++rank)
        ASSERT_EQ(std::memcmp(buffers.outputs[rank].data(), expected.data(), kCount * 2), 0)
            << find_type(type)->name << " rank " << rank << (in_place ? " in place" : "") << " seed " << seed_;
    }
  }
}

// Floats of any fraction: whatever the rounding, it is the same on every rank, and avg is near the true mean.
TEST_P(EveryAlgorithm, RanksAgreeBitForBit) {
  auto [algorithm, ranks, channels, streams] = GetParam();
  constexpr size_t kCount = 9001;
  LocalRanks executor(ranks, channels, 2048, false, streams);
  for (trDataType_t type : {trFloat32, trFloat64, trBfloat16})
    for (trRedOp_t op : {trSum, trAvg, trMax, trProd}) {
      JobBuffers buffers(ranks, type, kCount, random_() % 2 == 0, &random_);
      auto inputs = buffers.inputs;
      ASSERT_EQ(executor.run(*algorithm, buffers.job(kCount, type, op), 1, &random_), "") << "seed " << seed_;
      size_t bytes = kCount * find_type(type)->size;
      for (uint32_t rank = 1; rank < ranks; ++rank)
        ASSERT_EQ(std::memcmp(buffers.outputs[0].data(), buffers.outputs[rank].data(), bytes), 0)
            << find_type(type)->name << " " << find_op(op)->name << " rank " << rank << " seed " << seed_;
      if (type != trFloat64 || op != trAvg) continue;
      for (size_t i = 0; i < kCount; ++i) {
        double mean = 0, value = 0, got = 0;
        for (const Bytes& input : inputs) {
          std::memcpy(&value, input.data() + i * 8, 8);
          mean += value / ranks;
        }
        std::memcpy(&got, buffers.outputs[0].data() + i * 8, 8);
        ASSERT_NEAR(got, mean, 1e-12) << "element " << i << " seed " << seed_;
      }
    }
}

// Also where each multiplies its operand by a factor that makes products which the type does not hold.
TEST_P(EveryAlgorithm, RanksAgreeOnScaledOperands) {
  auto [algorithm, ranks, channels, streams] = GetParam();
  constexpr size_t kCount = 3001;
  for (bool wide_partials : {false, true}) {
    LocalRanks executor(ranks, channels, 2048, wide_partials, streams);
    for (trDataType_t type : {trFloat32, trFloat16, trBfloat16, trFloat8e4m3}) {
      JobBuffers buffers(ranks, type, kCount, random_() % 2 == 0, &random_);
      LocalJob job = buffers.job(kCount, type, trSum);
      std::vector<Bytes> factors;
      for (uint32_t rank = 0; rank < ranks; ++rank) factors.push_back(random_elements(type, 1, &random_));
      for (const Bytes& factor : factors) job.scales.push_back(factor.data());
      ASSERT_EQ(executor.run(*algorithm, job, 1, &random_), "") << "seed " << seed_;
      for (uint32_t rank = 1; rank < ranks; ++rank)
        ASSERT_EQ(std::memcmp(buffers.outputs[0].data(), buffers.outputs[rank].data(), kCount * find_type(type)->size),
                  0)
            << find_type(type)->name << (wide_partials ? " wide" : "") << " rank " << rank << " seed " << seed_;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, EveryAlgorithm, ::testing::ValuesIn(settings()), setting_name);

TEST(Execution, OperationsFollowOneAnotherOnTheSameConnections) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  LocalRanks executor(5, 2, 1024, false);
  for (int operation = 0; operation < 200; ++operation) {
    const Algorithm& algorithm =
        *algorithms_of(Collective::kAllReduce)[random() % algorithms_of(Collective::kAllReduce).size()];
    size_t count = random() % 3000;
    JobBuffers buffers(5, trUint32, count, random() % 2 == 0, &random);
    auto expected = expected_sum(buffers.inputs, count);
    std::string what =
        std::string(algorithm.name) + " operation " + std::to_string(operation) + " seed " + std::to_string(seed);
    ASSERT_EQ(executor.run(algorithm, buffers.job(count, trUint32, trSum), 1, &random), "") << what;
    ASSERT_NO_FATAL_FAILURE(expect_sums(buffers, expected, what));
  }
}

// A message of many chunks must fit a slot even where chunks of a whole cache line would not.
TEST(Execution, LongSpansFitSmallSlots) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const Algorithm* algorithm = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "halving-doubling", &algorithm).ok());
  for (bool wide : {false, true}) {
    LocalRanks executor(64, 1, 1024, wide);
    for (trDataType_t type : {trUint32, trBfloat16, trUint8}) {
      constexpr size_t kCount = 9001;
      JobBuffers buffers(64, type, kCount, false, &random);
      JobBuffers again = buffers;
      LocalJob job = buffers.job(kCount, type, trMax), same = again.job(kCount, type, trMax);
      const Algorithm* two_shot = nullptr;
      ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "two-shot", &two_shot).ok());
      ASSERT_EQ(executor.run(*algorithm, job, 1, &random), "") << "seed " << seed;
      ASSERT_EQ(executor.run(*two_shot, same, 1, &random), "") << "seed " << seed;
      EXPECT_TRUE(same_bytes(buffers.outputs, again.outputs))
          << find_type(type)->name << (wide ? " wide" : "") << " seed " << seed;
    }
  }
}

// A rank's own operand is read as what it is wherever it stands among many: scaled, or wider than the messages.
TEST(Execution, TheLocalOperandOfManyRanks) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  constexpr uint32_t kRanks = 70;
  constexpr size_t kCount = 1000;
  const float two = 2;
  LocalRanks executor(kRanks, 1, 4096, false);
  for (const char* name : {"one-shot", "two-shot"})
    for (bool scaled : {false, true}) {
      const Algorithm* algorithm = nullptr;
      ASSERT_TRUE(find_algorithm(Collective::kAllReduce, name, &algorithm).ok());
      JobBuffers buffers(kRanks, trFloat32, kCount, false, &random);
      const std::vector<float> ones(kCount, 1.0f);
      for (Bytes& input : buffers.inputs) std::memcpy(input.data(), ones.data(), kCount * sizeof(float));
      LocalJob job = buffers.job(kCount, trFloat32, trSum);
      if (scaled)
        job.scales.assign(kRanks, &two);
      else
        job.wire = trFloat16;
      ASSERT_EQ(executor.run(*algorithm, job, 1, &random), "") << "seed " << seed;
      const std::vector<float> expected(kCount, scaled ? 2.0f * kRanks : kRanks);
      for (uint32_t rank = 0; rank < kRanks; ++rank)
        ASSERT_EQ(std::memcmp(buffers.outputs[rank].data(), expected.data(), kCount * sizeof(float)), 0)
            << name << (scaled ? " scaled" : " fp16") << " rank " << rank << " seed " << seed;
    }
}

TEST(Execution, ADifferentSignatureIsAFailureThatNamesThePeer) {
  std::mt19937_64 random(test_seed(1));
  for (size_t count : {size_t{4}, size_t{5000}}) {
    LocalRanks executor(2, 1, 4096, false);
    JobBuffers buffers(2, trUint32, count, false, &random);
    LocalJob job = buffers.job(count, trUint32, trSum);
    const Algorithm* algorithm = nullptr;
    ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "two-shot", &algorithm).ok());
    Program programs[2];
    for (uint32_t rank : {0u, 1u}) executor.begin(*algorithm, job, flat_plan(2), 1, rank, &programs[rank], 10 + rank);
    bool failed[2] = {};
    for (int turn = 0; turn < 100; ++turn)
      for (uint32_t rank : {0u, 1u})
        if (!failed[rank]) failed[rank] = executor.execution(rank).advance() == Progress::kDiffers;
    for (uint32_t rank : {0u, 1u}) {
      EXPECT_TRUE(failed[rank]) << "rank " << rank;
      EXPECT_EQ(executor.execution(rank).status().code(), trInvalidUsage);
      EXPECT_EQ(executor.execution(rank).peer(), 1 - rank);
    }
  }
}

TEST(Execution, ABlockedRankNamesWhomItWaitsFor) {
  std::mt19937_64 random(test_seed(1));
  LocalRanks executor(4, 1, 4096, false);
  JobBuffers buffers(4, trUint32, 100, false, &random);
  LocalJob job = buffers.job(100, trUint32, trSum);
  const Algorithm* ring = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kAllReduce, "ring", &ring).ok());
  Program program;
  executor.begin(*ring, job, flat_plan(4), 1, 2, &program);
  while (executor.execution(2).advance() == Progress::kMoved) continue;
  EXPECT_EQ(executor.execution(2).advance(), Progress::kBlocked);
  EXPECT_EQ(executor.execution(2).peer(), 1u);
}

// Rank 1 has all slots and reads none, so that the root has none for rank 2, which has read all of its own.
TEST(Execution, ARankWithoutASlotNamesWhoHasNotReadIt) {
  constexpr size_t kCount = 100'000;
  std::mt19937_64 random(test_seed(1));
  LocalRanks executor(3, 1, 4096, false);
  JobBuffers buffers(3, trFloat32, 3 * kCount, false, &random);
  LocalJob job = buffers.job(kCount, trFloat32, trSum);
  job.collective = Collective::kScatter;
  job.wire = trBfloat16;  // each value is converted, so that it goes through a slot
  const Algorithm* direct = nullptr;
  ASSERT_TRUE(find_algorithm(Collective::kScatter, "direct", &direct).ok());
  Program programs[3];
  for (const uint32_t rank : {0u, 2u}) executor.begin(*direct, job, flat_plan(3), 1, rank, &programs[rank]);
  for (bool moved = true; moved;) {
    moved = false;
    for (const uint32_t rank : {0u, 2u}) moved |= executor.execution(rank).advance() == Progress::kMoved;
  }
  EXPECT_EQ(executor.execution(2).peer(), 0u);
  EXPECT_EQ(executor.execution(0).peer(), 1u);
}

}  // namespace
}  // namespace treering
