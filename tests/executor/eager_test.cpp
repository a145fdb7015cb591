// SPDX-License-Identifier: Apache-2.0
// The paths that stand beside the schedules: eager messages against the schedules "direct" and "one-shot" and the lanes
// that they equal, and the block-scaled float8 codec against its bound.
#include "executor/eager.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "executor/local_ranks.h"
#include "executor/reduce/block_float8.h"
#include "support/seed.h"

namespace treering {
namespace {

struct Buffers {
  std::vector<Bytes> in, out;
};

// One collective on all ranks: each rank by eager messages or by the schedule, as `by_eager` says.
void run_direct(LocalRanks* ranks, Collective collective, uint32_t root, size_t count, trRedOp_t op, uint64_t by_eager,
                std::mt19937_64* random, Buffers* buffers) {
  const Algorithm* direct = nullptr;
  ASSERT_TRUE(find_algorithm(collective, collective == Collective::kAllReduce ? "one-shot" : "direct", &direct).ok());
  const Plan plan = flat_plan(ranks->ranks());
  std::vector<Program> programs(ranks->ranks());
  std::vector<Call> calls(ranks->ranks());
  std::vector<std::unique_ptr<EagerPath>> eager(ranks->ranks());
  for (uint32_t rank = 0; rank < ranks->ranks(); ++rank) {
    programs[rank].algorithm = direct;
    programs[rank].channels.push_back(direct->build(plan, rank, {.root = root}));
    Call& call = calls[rank];
    call.signature = 77;
    call.layout.collective = &info_of(collective);
    call.layout.rank = rank;
    call.layout.ranks = ranks->ranks();
    call.layout.root = root;
    call.layout.count = count;
    call.input = View(buffers->in[rank].data());
    call.output = View(buffers->out[rank].data());
    call.type_size = sizeof(float);
    call.op = op;
    if (by_eager >> rank & 1) {
      eager[rank] = std::make_unique<EagerPath>(&ranks->context(rank));
      eager[rank]->start(&call);
    } else {
      ranks->execution(rank).bind(programs[rank], call);
    }
  }
  std::vector<uint32_t> waiting(ranks->ranks());
  std::iota(waiting.begin(), waiting.end(), 0);
  for (size_t idle = 0; !waiting.empty();) {
    const size_t at = (*random)() % waiting.size();
    const uint32_t rank = waiting[at];
    ASSERT_LT(++idle, 1'000'000u) << "deadlock";
    const Progress progress = eager[rank] ? eager[rank]->advance() : ranks->execution(rank).advance();
    ASSERT_LT(progress, Progress::kDiffers);  // nor has it failed
    if (progress == Progress::kDone) waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

// Whatever mixture of ranks takes the fast path, the results are the schedule's, bit for bit.
TEST(EagerPath, EqualsTheDirectSchedulesAlsoWhereOnlySomeRanksUseIt) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (auto [n, streams] : {std::pair{1u, 0u}, {2u, 0u}, {3u, 0u}, {5u, 0u}, {3u, 1u}, {5u, 2u}}) {
    LocalRanks ranks(n, 1, 8 << 10, false, streams);
    for (Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast, Collective::kAllGather,
          Collective::kReduceScatter, Collective::kAllToAll, Collective::kGather, Collective::kScatter})
      for (size_t count : {size_t{0}, size_t{1}, size_t{8}, size_t{9}, size_t{500}})
        for (trRedOp_t op : {trSum, trAvg, trMax}) {
          const uint32_t root = static_cast<uint32_t>(random() % n);
          Buffers reference, mixed;
          for (uint32_t r = 0; r < n; ++r) {
            reference.in.push_back(random_elements(trFloat32, n * count, &random));
            reference.out.emplace_back(reference.in[r].size(), std::byte{0xEE});
          }
          mixed = reference;
          run_direct(&ranks, collective, root, count, op, 0, &random, &reference);
          // Without data a schedule with one part still sends empty messages: then all ranks take the same path.
          run_direct(&ranks, collective, root, count, op, count == 0 ? ~uint64_t{0} : random(), &random, &mixed);
          if (HasFatalFailure()) return;
          ASSERT_EQ(mixed.out, reference.out) << info_of(collective).name << " n " << n << " streams " << streams
                                              << " count " << count << " seed " << seed;
        }
  }
}

TEST(BlockFloat8, StaysWithinItsBoundAndEncodingAgainChangesNothing) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (trDataType_t type : {trFloat8e4m3, trFloat8e5m2})
    for (size_t count : {size_t{1}, size_t{127}, size_t{128}, size_t{129}, size_t{5000}})
      for (float spread : {1e-30f, 1e-3f, 1.0f, 1e20f}) {
        std::vector<float> values(count), back(count), again(count);
        for (float& value : values) value = normal(random) * spread * std::exp(normal(random) * 3);
        std::vector<std::byte> message(encoded_bytes(count));
        auto* scales = reinterpret_cast<float*>(message.data());
        std::byte* bytes = message.data() + encoded_bytes(count) - count;
        encode_blocks(type, values.data(), count, scales, bytes);
        decode_blocks(type, scales, bytes, count, back.data());
        const float relative = type == trFloat8e4m3 ? 0x1p-4f : 0x1p-3f,
                    tiny = type == trFloat8e4m3 ? 0x1p-17f : 0x1p-31f;
        for (size_t begin = 0; begin < count; begin += kFloat8Block) {
          const size_t end = std::min(begin + kFloat8Block, count);
          float most = 0;
          for (size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(values[i]));
          for (size_t i = begin; i < end; ++i)
            ASSERT_LE(std::fabs(back[i] - values[i]), std::max(relative * std::fabs(values[i]), tiny * most))
                << find_type(type)->name << " " << values[i] << " in a block up to " << most << " seed " << seed;
        }
        encode_blocks(type, back.data(), count, scales, bytes);
        decode_blocks(type, scales, bytes, count, again.data());
        ASSERT_EQ(back, again) << "seed " << seed;
      }
}

TEST(BlockFloat8, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (trDataType_t type : {trFloat8e4m3, trFloat8e5m2}) {
    const float values[] = {0, -0.0f, nan, 3};
    float scales[1], back[4];
    std::byte bytes[4];
    encode_blocks(type, values, 4, scales, bytes);
    decode_blocks(type, scales, bytes, 4, back);
    EXPECT_EQ(back[0], 0);
    EXPECT_TRUE(std::signbit(back[1]));
    EXPECT_TRUE(std::isnan(back[2]));
    EXPECT_EQ(back[3], 3);
    const float infinite[] = {inf, 1};
    encode_blocks(type, infinite, 2, scales, bytes);
    decode_blocks(type, scales, bytes, 2, back);
    EXPECT_TRUE(type == trFloat8e4m3 ? std::isnan(back[0]) : std::isinf(back[0]));
    EXPECT_EQ(back[1], 1);
  }
}

TEST(BlockFloat8, TheEndsOfTheRange) {
  constexpr float kMax = std::numeric_limits<float>::max(), kMin = std::numeric_limits<float>::denorm_min();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (trDataType_t type : {trFloat8e4m3, trFloat8e5m2}) {
    const bool e4m3 = type == trFloat8e4m3;
    const float relative = e4m3 ? 0x1p-4f : 0x1p-3f, absolute = e4m3 ? 0x1p-136f : 0x1p-143f;
    for (float value : {kMax, 0x1.fp127f, 0x1.ep127f, 0x1.cp127f, 0x1.bp127f, 0x1p127f, 0x1p-117f, 0x1p-126f, 1e-39f,
                        8e-41f, 1e-42f, 3 * kMin, kMin}) {
      const float values[] = {value, -value, nan};
      float scales[1], back[3], again[3];
      std::byte bytes[3];
      encode_blocks(type, values, 3, scales, bytes);
      decode_blocks(type, scales, bytes, 3, back);
      EXPECT_LE(std::fabs(back[0] - value), std::max(relative * value, absolute)) << value << " becomes " << back[0];
      EXPECT_EQ(back[1], -back[0]);
      EXPECT_TRUE(std::isnan(back[2]));
      encode_blocks(type, back, 3, scales, bytes);
      decode_blocks(type, scales, bytes, 3, again);
      EXPECT_EQ(again[0], back[0]) << value;
    }
  }
}

TEST(BlockFloat8, FeedbackKeepsWhatRoundingTook) {
  std::mt19937_64 random(test_seed(5));
  std::uniform_real_distribution<float> real(-1, 1);
  for (trDataType_t wire : {trFloat16, trBfloat16, trFloat8e4m3, trFloat8e5m2}) {
    std::vector<float> values(3000), residual(3000), adjusted(3000);
    for (float& value : values) value = real(random);
    for (int step = 0; step < 5; ++step) {
      const std::vector<float> before = residual;
      round_with_feedback(wire, values.data(), values.size(), residual.data(), adjusted.data());
      for (size_t i = 0; i < values.size(); ++i) {
        const float exact = values[i] + before[i];
        ASSERT_EQ(adjusted[i] + residual[i], exact) << find_type(wire)->name;
        ASSERT_LE(std::fabs(residual[i]), 0.2f);
      }
    }
  }
}

}  // namespace
}  // namespace treering
