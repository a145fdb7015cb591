// SPDX-License-Identifier: Apache-2.0
// The algorithms between hosts: correct on every shape of cluster, and what they send over the hosts' links.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <utility>

#include "algorithms/cost.h"
#include "algorithms/expand.h"
#include "algorithms/properties.h"
#include "algorithms/select.h"
#include "algorithms/verify.h"
#include "helpers.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering {
namespace {

constexpr const Algorithm* kRows[] = {&kHybrid, &kHybridRing, &kHierarchical, &kRing2d};

std::string describe(const Algorithm& row, const std::vector<uint32_t>& sizes, const Shape& shape, uint64_t seed) {
  return fmt::format("{} on hosts of {} ranks, channel {}, pipeline {}, seed {}", row.name, fmt::join(sizes, "+"),
                     shape.channel, shape.pipeline_chunks, seed);
}

// Bytes of a buffer of 1 that each host sends to others, all channels together.
std::vector<double> sent_by_hosts(const Algorithm& row, const Plan& plan, uint32_t channels, uint32_t pipeline) {
  std::vector<double> sent(plan.leaders.size(), 0);
  for (uint32_t channel = 0; channel < channels; ++channel)
    for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
      const Schedule s = row.build(plan, rank, {.channel = channel, .channels = channels, .pipeline_chunks = pipeline});
      for (Expansion at(s); !at.done(); at.advance())
        for (uint32_t i = 0; (at.step().flags & kSend) != 0 && i < at.step().send_count; ++i)
          if (plan.host[at.send_peer(i)] != plan.host[rank])
            sent[plan.host[rank]] += static_cast<double>(at.step().span) / s.chunks / channels;
    }
  return sent;
}

TEST(Hosts, EveryShapeOfUpToFiveHostsExactly) {
  std::mt19937_64 random(test_seed(20240611));
  uint64_t cases = 0;
  for (uint32_t trial = 0; trial < 150; ++trial) {
    std::vector<uint32_t> sizes(1 + random() % 5);
    for (uint32_t& size : sizes) size = 1 + static_cast<uint32_t>(random() % (trial % 3 == 0 ? 9 : 4));
    const uint64_t seed = random();
    const Plan plan = make_host_plan(sizes, seed);
    for (const Algorithm* row : kRows)
      for (uint32_t channel = 0; channel < 4; ++channel)
        for (uint32_t pipeline : {1u, 2u, 3u, 7u}) {
          if (pipeline > 1 && !row->pipelined) continue;
          const Shape shape = {.channel = channel, .channels = 4, .pipeline_chunks = pipeline};
          const auto schedules = build_all(*row, plan, shape);
          const VerifyReport report = verify(schedules, {.exact = plan.ranks <= 64});
          ASSERT_TRUE(report.ok()) << describe(*row, sizes, shape, seed) << ": " << report.error;
          for (const Schedule& schedule : schedules)
            if (plan.ranks > 1) {
              ASSERT_TRUE(properties_of(schedule).input_used_once) << describe(*row, sizes, shape, seed);
            }
          ++cases;
        }
  }
  fmt::print("{} cases\n", cases);
}

TEST(Hosts, ManyRanks) {
  constexpr uint32_t kMax = testing::kSanitized ? 600 : 4096;
  std::vector<std::vector<uint32_t>> clusters = {
      std::vector<uint32_t>(64, 8), std::vector<uint32_t>(256, 16), std::vector<uint32_t>(1000, 1), {}, {}};
  for (uint32_t i = 0; i < 100; ++i) clusters[3].push_back(1 + i * 7 % 8);   // unequal
  for (uint32_t i = 0; i < 600; ++i) clusters[4].push_back(1 + i * 5 % 12);  // unequal, some 3900 ranks
  for (const auto& sizes : clusters) {
    const Plan plan = make_host_plan(sizes, 7);
    if (plan.ranks > kMax) continue;
    for (const Algorithm* row : kRows) {
      if (plan.ranks == 4096 && row == &kRing2d) continue;  // as many messages as hierarchical
      const Shape shape = {.channel = 1, .channels = 4, .pipeline_chunks = row->pipelined ? 4u : 1u};
      const VerifyReport report = verify(build_all(*row, plan, shape));
      ASSERT_TRUE(report.ok()) << describe(*row, {sizes[0]}, shape, 7) << ": " << report.error;
      fmt::print("{:>12} {:>4} hosts {:>5} ranks {:>9} messages\n", row->name, sizes.size(), plan.ranks,
                 report.messages);
    }
  }
}

// The links between hosts are what a large allreduce waits for: 2 (h-1)/h of the buffer is the least that each must
// carry.
TEST(Hosts, RingsBetweenHostsSendTheLeast) {
  for (const std::vector<uint32_t>& sizes :
       {std::vector<uint32_t>{2, 2}, {4, 4, 4, 4}, {1, 1, 1}, {3, 1, 2}, {8, 8, 8, 8, 8}})
    for (const Algorithm* row : {&kHierarchical, &kRing2d}) {
      const double h = static_cast<double>(sizes.size());
      for (double sent : sent_by_hosts(*row, make_host_plan(sizes, 3), 4, 1))
        EXPECT_NEAR(sent, 2 * (h - 1) / h, 1e-9) << row->name << " " << fmt::format("{}", fmt::join(sizes, "+"));
    }
}

TEST(Hosts, TreesBetweenHostsAreBalancedByTheirChannels) {
  for (uint32_t h : {2u, 4u, 8u, 16u, 64u})
    for (const Algorithm* row : {&kHybrid, &kHybridRing}) {
      const auto sent = sent_by_hosts(*row, make_host_plan(std::vector<uint32_t>(h, 2), 0), 4, 2);
      const double most = *std::max_element(sent.begin(), sent.end());
      EXPECT_LE(most, 2.0 * (h - 1) / h * (h <= 4 ? 1.0001 : 1.2)) << row->name << " " << h << " hosts";
    }
}

// What the cost model believes of the links against what the schedules send. The model has one number for a kind of
// algorithm: within a factor of 2 it tells a good choice from a bad one.
TEST(Hosts, NetworkBytesAgreeWithTheSchedules) {
  for (const std::vector<uint32_t>& sizes : {std::vector<uint32_t>{4, 4}, {4, 4, 4, 4}, std::vector<uint32_t>(8, 2)})
    for (const Algorithm* row : algorithms_of(Collective::kAllReduce)) {
      const Plan plan = make_host_plan(sizes, 0);
      const uint32_t pipeline = row->pipelined ? 16 : 1;
      const auto sent = sent_by_hosts(*row, plan, row->channels, pipeline);
      const double most = *std::max_element(sent.begin(), sent.end());
      const auto h = static_cast<uint32_t>(sizes.size());
      const Work work =
          row->work({.ranks = plan.ranks, .hosts = h, .host_ranks = sizes[0], .bytes = 1, .pipeline_chunks = pipeline});
      const double n = plan.ranks, g = sizes[0];
      const double model = work.network_bytes >= 0 ? work.network_bytes : g * work.sent_bytes * (n - g) / (n - 1);
      EXPECT_LE(most / model, 2.0) << row->name << " " << h << " hosts: " << most << " and " << model;
      EXPECT_GE(most / model, 0.5) << row->name << " " << h << " hosts: " << most << " and " << model;
    }
}

// The bytes that a rank sends, for every algorithm.
TEST(Hosts, SentBytesAgreeWithTheSchedules) {
  for (const CollectiveInfo& info : collectives())
    for (const Algorithm* row : algorithms_of(info.collective))
      for (uint32_t n : {2u, 4u, 8u, 16u}) {
        if (info.collective == Collective::kBarrier) continue;  // of nothing
        const uint32_t channels = row->pipelined ? row->channels : 1, pipeline = row->pipelined ? 4 : 1;
        double most = 0;
        for (uint32_t rank = 0; rank < n; ++rank) {
          double sent = 0;
          for (uint32_t channel = 0; channel < channels; ++channel) {
            const Schedule s =
                row->build(make_plan(n), rank, {.channel = channel, .channels = channels, .pipeline_chunks = pipeline});
            const double whole = info.parts == Parts::kPairs ? n : s.chunks;
            const ScheduleProperties p = properties_of(s);
            // The busiest rank of a gather is the root, and it receives.
            const uint64_t moved = info.collective == Collective::kGather ? p.chunks_received : p.chunks_sent;
            sent += static_cast<double>(moved) / whole / channels;
          }
          most = std::max(most, sent);
        }
        const double model = row->work({.ranks = n, .bytes = 1, .pipeline_chunks = pipeline}).sent_bytes;
        EXPECT_LE(most / model, 1.35) << info.name << " " << row->name << " n " << n << ": " << most << ", " << model;
        EXPECT_GE(most / model, 0.65) << info.name << " " << row->name << " n " << n << ": " << most << ", " << model;
      }
}

TEST(Hosts, ProgramsStaySmall) {
  const Plan plan = make_host_plan(std::vector<uint32_t>(128, 8), 0);
  for (const Algorithm* row : kRows)
    for (uint32_t rank : {0u, 511u, 1023u})
      EXPECT_LE(row->build(plan, rank, {.channel = 1, .channels = 4, .pipeline_chunks = 32}).steps.size(), 80u)
          << row->name;
}

// Four hosts of four ranks on 2 Gbit/s: trees for what is short, the least bytes for what is long, and never a flat
// algorithm that sends every rank's traffic over the host's one link.
TEST(Hosts, SelectionKnowsTheHosts) {
  Machine machine;
  machine.cores = 4;
  machine.hosts = 4;
  machine.host_ranks = 4;
  machine.network_gbps = 0.25;
  machine.network_us = 30;
  machine.mailbox_bytes = machine.eager_bytes = 0;
  Selection selection;
  for (uint64_t bytes : {uint64_t{4} << 20, uint64_t{64} << 20}) {
    ASSERT_TRUE(select(machine, {.ranks = 16, .bytes = bytes}, &selection).ok());
    EXPECT_GE(selection.best.algorithm->min_hosts, 2u) << selection.best.algorithm->name;
    // At most a fifth above the least time of the links.
    EXPECT_LE(selection.best.data_us, 1.2 * 1.5 * static_cast<double>(bytes) / 250) << selection.best.algorithm->name;
  }
  machine.hosts = 1;
  machine.host_ranks = 0;
  ASSERT_TRUE(select(machine, {.ranks = 16, .bytes = 1 << 20}, &selection).ok());
  EXPECT_EQ(selection.best.algorithm->min_hosts, 0u);
  const std::string reasons = fmt::format("{}", fmt::join(selection.left_out, "\n"));
  EXPECT_NE(reasons.find("hybrid: is for ranks on 2 hosts or more, these are on 1"), std::string::npos) << reasons;
}

// The phases of a slice wait for one another, so that a channel needs several; no message gets shorter than 32 KiB by
// that.
TEST(Hosts, PhasesOverlapFromSliceToSlice) {
  Machine machine;
  machine.hosts = machine.host_ranks = 2;
  machine.slot_bytes = 512 << 10;
  Candidate candidate;
  candidate.protocol = Protocol::kStaged;
  candidate.channels = 4;
  for (const auto& [name, bytes, slices, message] : {std::tuple{"hierarchical", uint64_t{4} << 20, 4u, 64u << 10},
                                                     {"hierarchical", uint64_t{1} << 20, 2u, 32u << 10},
                                                     {"hierarchical", uint64_t{256} << 10, 1u, 16u << 10},
                                                     {"hierarchical", uint64_t{64} << 20, 8u, 512u << 10},
                                                     {"ring", uint64_t{4} << 20, 1u, 256u << 10}}) {
    ASSERT_TRUE(find_algorithm(Collective::kAllReduce, name, &candidate.algorithm).ok());
    predict(machine, 4, bytes, candidate);
    EXPECT_EQ(candidate.slices, slices) << name << ", " << bytes;
    EXPECT_EQ(candidate.chunk_bytes, message) << name << ", " << bytes;
  }
}

// What several hosts send to one meets in a queue, and it is not worth fewer rounds when it is much.
TEST(Hosts, HalvingDoublingIsForLittleBetweenHosts) {
  Machine machine;
  machine.hosts = 4;
  machine.host_ranks = 1;
  machine.network_gbps = 0.25;
  machine.network_us = 4;
  machine.mailbox_bytes = machine.eager_bytes = 0;
  Selection selection;
  for (const auto& [bytes, name] : {std::pair{uint64_t{32} << 10, "halving-doubling"},
                                    {uint64_t{64} << 10, "halving-doubling"},
                                    {uint64_t{128} << 10, "ring"}}) {
    ASSERT_TRUE(select(machine, {.ranks = 4, .bytes = bytes}, &selection).ok());
    EXPECT_STREQ(selection.best.algorithm->name, name) << bytes;
  }
}

// Messages to all others are worth a round less where sending one is little work beside what it takes to arrive.
TEST(Hosts, OneShotIsForCheapMessages) {
  Machine machine;
  machine.hosts = 4;
  machine.host_ranks = 1;
  machine.network_gbps = 1;
  machine.mailbox_bytes = machine.eager_bytes = 0;
  Selection selection;
  for (const auto& [latency_us, message_us, name] :
       {std::tuple{30.0, 1.5, "one-shot"}, {10.0, 7.0, "recursive-doubling"}}) {
    machine.network_us = latency_us;
    machine.network_message_us = message_us;
    ASSERT_TRUE(select(machine, {.ranks = 4, .bytes = 8}, &selection).ok());
    EXPECT_STREQ(selection.best.algorithm->name, name) << latency_us;
  }
}

// A ring of hosts is latency-bound where a tree is not: small sums over many hosts.
TEST(Hosts, TreesWinWhereThereAreManyHosts) {
  Machine machine;
  machine.cores = 64;
  machine.hosts = 128;
  machine.host_ranks = 8;
  machine.network_gbps = 12.5;
  machine.network_us = 10;
  machine.mailbox_bytes = machine.eager_bytes = 0;
  Selection selection;
  ASSERT_TRUE(select(machine, {.ranks = 1024, .bytes = 4 << 20}, &selection).ok());
  EXPECT_STREQ(selection.best.algorithm->name, "hybrid");
  ASSERT_TRUE(select(machine, {.ranks = 1024, .bytes = uint64_t{8} << 30}, &selection).ok());
  EXPECT_GE(selection.best.algorithm->min_hosts, 2u) << selection.best.algorithm->name;
}

// A rank holds a connection (over verbs: a queue pair and locked memory) for each peer of what allreduces of all sizes
// use, one after another.
size_t most_peers(const Plan& plan, const Machine& machine) {
  std::vector<SelectionRange> ranges;
  EXPECT_TRUE(selection_ranges(machine, {.ranks = plan.ranks}, &ranges).ok());
  std::vector<std::set<uint32_t>> peers(plan.ranks);
  for (const SelectionRange& range : ranges) {
    const Candidate& chosen = range.at_first;
    for (uint32_t rank = 0; rank < plan.ranks; ++rank)
      for (uint32_t channel = 0; channel < chosen.channels; ++channel) {
        const Schedule s = chosen.algorithm->build(
            plan, rank, {.channel = channel, .channels = chosen.channels, .pipeline_chunks = chosen.pipeline_chunks});
        for (Expansion at(s); !at.done(); at.advance()) {
          for (uint32_t i = 0; i < at.step().send_count; ++i) peers[rank].insert(at.send_peer(i));
          for (uint32_t i = 0; i < at.step().receive_count; ++i) peers[rank].insert(at.receive_peer(i));
        }
      }
  }
  size_t most = 0;
  for (const auto& of_rank : peers) most = std::max(most, of_rank.size());
  return most;
}

TEST(Hosts, AllreducesOfAllSizesHaveFewPeers) {
  EXPECT_EQ(usual_peers(64), 63u);
  EXPECT_EQ(usual_peers(65), 14u);
  EXPECT_EQ(usual_peers(1024), 20u);
  for (const uint32_t hosts : {4u, 32u, 64u, 65u, 256u})
    for (const auto& [network_us, gbps, message_us] :
         {std::tuple{30.0, 1.0, 2.5}, {2.0, 12.5, 0.3}, {1.5, 50.0, 0.1}}) {
      Machine machine;
      machine.hosts = hosts;
      machine.host_ranks = 1;
      machine.mailbox_bytes = 0;
      machine.network_us = network_us;
      machine.network_gbps = gbps;
      machine.network_message_us = message_us;
      EXPECT_LE(most_peers(make_host_plan(std::vector<uint32_t>(hosts, 1), 7), machine), usual_peers(hosts))
          << hosts << " hosts, " << network_us << " us";
    }
}

}  // namespace
}  // namespace treering
