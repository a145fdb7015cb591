// SPDX-License-Identifier: Apache-2.0
// The expansion, the table of algorithms, and the numbers of docs/schedules.md.
#include "algorithms/algorithm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "algorithms/expand.h"
#include "algorithms/properties.h"
#include "helpers.h"
#include "support/seed.h"

namespace treering {
namespace {

TEST(Expansion, EqualsTheDefinitionOfBlocks) {
  const uint64_t seed = test_seed(20240517);
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int round = 0; round < 500; ++round) {
    Schedule s;
    s.ranks = 1 + below(9);
    s.chunks = 1 + below(9);
    for (uint32_t b = 0, blocks = below(4); b < blocks; ++b) {
      Block block = {static_cast<uint32_t>(s.steps.size()), 1 + below(3), 1 + below(20)};
      block.chunk_stride = static_cast<int32_t>(below(41)) - 20;
      block.peer_stride = static_cast<int32_t>(below(41)) - 20;
      s.blocks.push_back(block);
      for (uint32_t i = 0; i < block.length; ++i) {
        Step step;
        step.chunk = below(s.chunks);
        step.receive_first = step.send_first = static_cast<uint32_t>(s.peers.size());
        s.peers.push_back(below(s.ranks));
        s.steps.push_back(step);
      }
    }
    Expansion at(s);
    uint64_t position = 0;
    for (const Block& block : s.blocks)
      for (int64_t k = 0; k < block.count; ++k)
        for (uint32_t i = block.first; i < block.first + block.length; ++i, at.advance()) {
          const auto modulo = [](int64_t a, int64_t n) { return static_cast<uint32_t>(((a % n) + n) % n); };
          ASSERT_FALSE(at.done());
          ASSERT_EQ(at.position(), position++);
          ASSERT_EQ(at.step_index(), i);
          ASSERT_EQ(at.chunk(), modulo(s.steps[i].chunk + k * block.chunk_stride, s.chunks)) << "seed " << seed;
          const uint32_t peer = modulo(s.peers[s.steps[i].send_first] + k * block.peer_stride, s.ranks);
          ASSERT_EQ(at.send_peer(0), peer) << "seed " << seed;
          ASSERT_EQ(at.receive_peer(0), peer) << "seed " << seed;
        }
    ASSERT_TRUE(at.done());
  }
}

TEST(Algorithms, AreFoundByNameAndAnUnknownNameListsThem) {
  for (const Algorithm* row : algorithms_of(Collective::kAllReduce)) {
    const Algorithm* found = nullptr;
    ASSERT_TRUE(find_algorithm(Collective::kAllReduce, row->name, &found).ok());
    EXPECT_EQ(found, row);
  }
  const Algorithm* found = nullptr;
  const Status status = find_algorithm(Collective::kAllReduce, "rong", &found);
  EXPECT_EQ(status.code(), trInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "unknown algorithm 'rong' of allreduce; did you mean ring?; the known ones are: one-shot, recursive-doubling, two-shot, ring, "
      "halving-doubling, tree, hierarchical, hybrid, ring-2d, hybrid-ring");
}

TEST(Algorithms, RefuseBadPlansAndShapes) {
  const auto message = [](Plan plan, uint32_t rank, Shape shape, const Algorithm& algorithm = kRing) {
    return check_build(algorithm, plan, rank, shape).message();
  };
  EXPECT_EQ(message(make_plan(4), 4, {}), "rank 4 does not exist: ranks are 0 to 3");
  EXPECT_EQ(message(make_plan(4), 0, {.channel = 2, .channels = 2}), "channel 2 does not exist: there are 2 channels");
  EXPECT_EQ(message(make_plan(4), 0, {.pipeline_chunks = 0}), "0 pipeline chunks: must be 1 to 65535");
  EXPECT_EQ(message(make_plan(1025), 0, {}, kTwoShot), "algorithm 'two-shot' takes 1 to 1024 ranks, not 1025");
  Plan plan = make_plan(3);
  plan.ring[2] = 0;
  EXPECT_EQ(message(plan, 0, {}), "the plan's ring is no permutation of the ranks: rank 0 occurs twice");
  plan.ring.pop_back();
  EXPECT_EQ(message(plan, 0, {}), "the plan's ring names 2 ranks, the plan has 3");
}

TEST(Algorithms, ProgramsStaySmall) {
  for (const Algorithm* row : algorithms_of(Collective::kAllReduce))
    for (uint32_t n : {2u, 64u, 1000u}) {
      if (row->min_hosts > 1) continue;  // see hosts_test.cpp
      const size_t steps = row->build(make_plan(n), n / 2, {.channels = 2, .pipeline_chunks = 64}).steps.size();
      EXPECT_LE(steps, row == &kHalvingDoubling || row == &kRecursiveDoubling ? 4 * std::log2(n) + 1 : 5)
          << row->name << " n " << n;
    }
}

TEST(Tree, RanksAreInnerNodesOfAtMostOneTreeAndDepthIsLogarithmic) {
  for (uint32_t n = 2; n <= 200; ++n) {
    uint32_t both = 0;
    for (uint32_t rank = 0; rank < n; ++rank) {
      uint32_t inner = 0;
      for (uint32_t channel : {0u, 1u}) {
        const Schedule s = kTree.build(make_plan(n), rank, {.channel = channel, .channels = 2});
        for (const Step& step : s.steps) inner += (step.flags & kReduce) != 0;
        // The lag, 2 x distance from the root, shows in a long pipeline: its prologue.
        const Schedule deep =
            kTree.build(make_plan(n), rank, {.channel = channel, .channels = 2, .pipeline_chunks = 64});
        if (deep.blocks.size() == 3) {
          EXPECT_LE(deep.blocks[0].count, 2 * std::ceil(std::log2(n))) << n;
        }
      }
      both += inner > 1;
    }
    EXPECT_LE(both, n % 2) << n;  // the shift of an odd n leaves one
  }
}

// A tree needs both of its channels for the whole buffer; those of the others repeat the program on other
// slices.
uint32_t channels_of_one_run(const Algorithm& row) { return row.pipelined ? row.channels : 1; }

// The work of the cost model counts what the schedules do.
TEST(Algorithms, WorkAgreesWithTheSchedules) {
  for (const Algorithm* row : algorithms_of(Collective::kAllReduce))
    for (uint32_t n : {2u, 3u, 4u, 7u, 8u, 16u, 33u, 64u}) {
      const uint32_t pipeline = row->pipelined ? 4 : 1;
      const Work work = row->work({.ranks = n, .bytes = 1.0 * n * 64, .pipeline_chunks = pipeline});
      double messages = 0, reduced = 0;
      for (uint32_t rank = 0; rank < n; ++rank) {
        double rank_messages = 0, rank_reduced = 0;
        for (uint32_t channel = 0; channel < channels_of_one_run(*row); ++channel) {
          const Schedule s =
              row->build(make_plan(n), rank,
                         {.channel = channel, .channels = channels_of_one_run(*row), .pipeline_chunks = pipeline});
          const ScheduleProperties p = properties_of(s);
          ASSERT_EQ(s.chunks, work.chunks) << row->name << " n " << n;
          ASSERT_LE(s.max_span, work.max_span) << row->name << " n " << n;
          rank_messages += static_cast<double>(p.messages_sent + p.messages_received);
          rank_reduced += static_cast<double>(p.chunks_reduced) * n * 64 / s.chunks / channels_of_one_run(*row);
        }
        messages = std::max(messages, rank_messages);
        reduced = std::max(reduced, rank_reduced);
      }
      if (row == &kTree) {  // an odd n has a rank that is inner twice, the root of two ranks reduces two operands
        EXPECT_LE(messages, 1.5 * work.messages) << n;
        EXPECT_GE(messages, 0.7 * work.messages) << n;
      } else {
        EXPECT_DOUBLE_EQ(messages, work.messages) << row->name << " n " << n;
        EXPECT_NEAR(reduced, work.reduce_bytes, 1e-6) << row->name << " n " << n;
      }
    }
}

// One line of the table in docs/schedules.md, from the schedules: the busiest rank, all channels of the
// algorithm.
std::string documented_row(const Algorithm& row, uint32_t n) {
  const uint32_t pipeline = row.pipelined ? 4 : 1;
  uint64_t steps = 0, messages = 0;
  double bytes = 0;
  uint32_t chunks = 0, depth = 0;
  // Algorithms between hosts: on hosts of two ranks.
  std::vector<uint32_t> pairs(n / 2, 2);
  if (n % 2 == 1) pairs.push_back(1);
  const Plan plan = row.min_hosts > 1 ? make_host_plan(pairs, 0) : make_plan(n);
  for (uint32_t rank = 0; rank < n; ++rank) {
    uint64_t rank_steps = 0, rank_messages = 0;
    double rank_bytes = 0;
    for (uint32_t channel = 0; channel < channels_of_one_run(row); ++channel) {
      const Schedule s = row.build(
          plan, rank, {.channel = channel, .channels = channels_of_one_run(row), .pipeline_chunks = pipeline});
      const ScheduleProperties p = properties_of(s);
      rank_steps += p.steps;
      rank_messages += p.messages_sent;
      // A buffer holds one rank's part of the pairs' chunks.
      const double whole = info_of(row.collective).parts == Parts::kPairs ? n : s.chunks;
      rank_bytes += static_cast<double>(p.chunks_sent) / whole / channels_of_one_run(row);
      chunks = s.chunks;
      depth = s.fifo_depth;
    }
    steps = std::max(steps, rank_steps);
    messages = std::max(messages, rank_messages);
    bytes = std::max(bytes, rank_bytes);
  }
  return fmt::format("| {} | {} | {} | {} | {} | {} | {:.3f} B | {} |", info_of(row.collective).name, row.name, n,
                     chunks, steps, messages, bytes, depth);
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Documentation, TableAgreesWithTheSchedules) {
  const std::string text = text_of(TREERING_SCHEDULES_MD);
  for (const CollectiveInfo& info : collectives())
    for (const Algorithm* row : algorithms_of(info.collective)) {
      for (uint32_t n : {2u, 4u, 7u, 8u, 64u})
        EXPECT_NE(text.find(documented_row(*row, n) + "\n"), std::string::npos)
            << "docs/schedules.md lacks this line:\n"
            << documented_row(*row, n);
      EXPECT_NE(text.find(row->rounding), std::string::npos) << row->rounding;
      EXPECT_NE(text.find(row->source), std::string::npos) << row->source;
    }
}

// Compressed calls use what computes each result once.
TEST(Documentation, ErrorsOfCompressionAreThoseOfItsAlgorithms) {
  const std::string text = text_of(TREERING_COMPRESSION_MD);
  for (const Algorithm* row : algorithms_of(Collective::kAllReduce))
    EXPECT_EQ(text.find(fmt::format("\n| {} | ", row->name)) != std::string::npos, row->computed_once) << row->name;
}

}  // namespace
}  // namespace treering
