// SPDX-License-Identifier: Apache-2.0
// Every algorithm, for every number of ranks that is practical, against the verifier.
#include "algorithms/verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "algorithms/properties.h"
#include "helpers.h"
#include "support/sanitized.h"

namespace treering {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A sanitizer takes ten times the time and three times the memory.
constexpr uint32_t kMaxRanks = testing::kSanitized ? 1000 : 4096;
constexpr uint32_t kAllUpTo = testing::kSanitized ? 16 : 64;  // above, some numbers of ranks

std::vector<Shape> shapes_of(const Algorithm& algorithm) {
  std::vector<Shape> shapes;
  for (uint32_t channel : {0u, 1u})
    for (uint32_t pipeline : {1u, 2u, 3u, 8u, 16u})
      if (algorithm.pipelined || pipeline == 1)
        shapes.push_back({.channel = channel, .channels = 2, .pipeline_chunks = pipeline});
  return shapes;
}

// Roots: the first, the last, one between.
std::vector<uint32_t> roots_of(const CollectiveInfo& info, uint32_t n) {
  std::vector<uint32_t> roots = {0};
  if (info.rooted && n > 1) roots.push_back(n - 1);
  if (info.rooted && n > 2) roots.push_back(n / 2);
  return roots;
}

class EveryAlgorithm : public ::testing::TestWithParam<Collective> {};

TEST_P(EveryAlgorithm, ForOneToSixtyFourRanksExactlyAndByHash) {
  Stopwatch watch;
  const CollectiveInfo& info = info_of(GetParam());
  uint64_t cases = 0, steps = 0;
  for (const Algorithm* algorithm : algorithms_of(info.collective))
    for (uint32_t n = 1; n <= 64; n += n < kAllUpTo ? 1 : 16)
      for (Shape shape : shapes_of(*algorithm))
        for (uint32_t root : roots_of(info, n)) {
          const uint64_t shuffle = root == 0 ? 0 : n;
          shape.root = root;
          const Plan plan = make_plan(n, shuffle);
          ASSERT_TRUE(check_build(*algorithm, plan, n - 1, shape).ok());
          const auto schedules = build_all(*algorithm, plan, shape);
          for (bool exact : {false, true}) {
            const VerifyReport report =
                verify(schedules, {.collective = info.collective, .root = root, .exact = exact});
            ASSERT_TRUE(report.ok()) << info.name << " " << algorithm->name << " n " << n << " root " << root
                                     << " channel " << shape.channel << " pipeline " << shape.pipeline_chunks
                                     << " shuffle seed " << shuffle << ": " << report.error;
            // Three ranks and more tell the order of the ranks from another.
            if (algorithm->rank_ordered) {
              ASSERT_TRUE(report.rank_ordered) << info.name << " " << algorithm->name << " n " << n;
            } else if (n >= 5) {
              ASSERT_FALSE(report.rank_ordered) << info.name << " " << algorithm->name << " n " << n;
            }
            ++cases;
            steps += report.steps;
          }
          const Work work = algorithm->work({.ranks = n, .bytes = 1, .pipeline_chunks = shape.pipeline_chunks});
          bool used_once = true;  // by every rank
          for (const Schedule& schedule : schedules) {
            ASSERT_LE(schedule.max_span, work.max_span) << info.name << " " << algorithm->name << " n " << n;
            used_once &= properties_of(schedule).input_used_once;
          }
          if (info.reduces) {
            ASSERT_EQ(used_once, algorithm->input_used_once || n == 1)
                << info.name << " " << algorithm->name << " n " << n;
          }
        }
  fmt::print("{} cases, {} steps, {:.2f} s\n", cases, steps, watch.seconds());
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryAlgorithm,
                         ::testing::Values(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                                           Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll,
                                           Collective::kGather, Collective::kScatter, Collective::kBarrier),
                         [](const auto& info) {
                           std::string name = info_of(info.param).name;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Verify, ManyRanks) {
  struct Case {
    const Algorithm* algorithm;
    std::vector<uint32_t> ranks;
  };
  const Case cases[] = {{&kRing, {100, 513, 1000, 4096}},
                        {&kTree, {100, 513, 1000, 2047, 4095, 4096}},
                        {&kRecursiveDoubling, {100, 513, 1000, 4095, 4096}},
                        {&kHalvingDoubling, {100, 513, 1000, 4095, 4096}},
                        {&kOneShot, {100, 511, 512}},
                        {&kTwoShot, {100, 511, 512}},
                        {&kBroadcastTree, {1000, 4095}},
                        {&kBroadcastChain, {1000, 4095}},
                        {&kBroadcastBinomial, {1000, 4095}},
                        {&kBroadcastScatterAllgather, {100, 512}},
                        {&kReduceTree, {1000, 4095}},
                        {&kReduceScatterGather, {100, 512}},
                        {&kAllGatherRing, {1000, 2047}},
                        {&kAllGatherBruck, {1000, 2047}},
                        {&kReduceScatterRing, {1000, 2047}},
                        {&kReduceScatterHalving, {1000, 2047}},
                        {&kAllToAllPairwise, {100, 200}},
                        {&kAllToAllBruck, {100, 200}},
                        {&kGatherBinomial, {1000, 4095}},
                        {&kScatterBinomial, {1000, 4095}}};
  for (const Case& c : cases)
    for (uint32_t n : c.ranks) {
      if (n > kMaxRanks) continue;
      Stopwatch watch;
      const Plan plan = make_plan(n, n);  // a shuffled ring, seed n
      const VerifyReport report =
          verify(build_all(*c.algorithm, plan, {.channel = 1, .channels = 2, .pipeline_chunks = 8, .root = n / 3}),
                 {.collective = c.algorithm->collective, .root = n / 3});
      ASSERT_TRUE(report.ok()) << info_of(c.algorithm->collective).name << " " << c.algorithm->name << " n " << n
                               << " shuffle seed " << n << ": " << report.error;
      fmt::print("{:>16} {:>5} ranks {:>9} steps {:>9} messages {:.2f} s\n", c.algorithm->name, n, report.steps,
                 report.messages, watch.seconds());
    }
}

}  // namespace
}  // namespace treering
