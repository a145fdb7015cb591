// Every algorithm, for every number of ranks that is practical, against the verifier.
#include "algorithms/verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "algorithms/properties.h"
#include "helpers.h"

namespace treering {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::vector<Shape> shapes_of(const Algorithm& algorithm) {
  std::vector<Shape> shapes;
  for (uint32_t channel : {0u, 1u})
    for (uint32_t pipeline : {1u, 2u, 3u, 8u, 16u})
      if (algorithm.pipelined || pipeline == 1)
        shapes.push_back({.channel = channel, .channels = 2, .pipeline_chunks = pipeline});
  return shapes;
}

TEST(Verify, EveryAlgorithmForOneToSixtyFourRanksExactlyAndByHash) {
  Stopwatch watch;
  uint64_t cases = 0, steps = 0;
  for (const Algorithm* algorithm : allreduce_algorithms())
    for (uint32_t n = 1; n <= 64; ++n)
      for (const Shape& shape : shapes_of(*algorithm))
        for (uint64_t shuffle : {0u, n}) {
          const Plan plan = make_plan(n, shuffle);
          ASSERT_TRUE(check_build(*algorithm, plan, n - 1, shape).ok());
          const auto schedules = build_all(*algorithm, plan, shape);
          for (bool exact : {false, true}) {
            const VerifyReport report = verify(schedules, {.exact = exact});
            ASSERT_TRUE(report.ok()) << algorithm->name << " n " << n << " channel " << shape.channel
                                     << " pipeline " << shape.pipeline_chunks << " shuffle seed " << shuffle
                                     << ": " << report.error;
            ++cases;
            steps += report.steps;
          }
          for (const Schedule& schedule : schedules)
            ASSERT_EQ(properties_of(schedule).input_used_once, algorithm->input_used_once || n == 1)
                << algorithm->name << " n " << n;
        }
  fmt::print("{} cases, {} steps, {:.2f} s\n", cases, steps, watch.seconds());
}

TEST(Verify, ManyRanks) {
  struct Case {
    const Algorithm* algorithm;
    std::vector<uint32_t> ranks;
  };
  const Case cases[] = {{&kRing, {100, 513, 1000, 4096}},
                        {&kTree, {100, 513, 1000, 2047, 4095, 4096}},
                        {&kHalvingDoubling, {100, 513, 1000, 4095, 4096}},
                        {&kOneShot, {100, 511, 512}},
                        {&kTwoShot, {100, 511, 512}}};
  for (const Case& c : cases)
    for (uint32_t n : c.ranks) {
      Stopwatch watch;
      const Plan plan = make_plan(n, n);  // a shuffled ring, seed n
      const VerifyReport report =
          verify(build_all(*c.algorithm, plan, {.channel = 1, .channels = 2, .pipeline_chunks = 8}));
      ASSERT_TRUE(report.ok()) << c.algorithm->name << " n " << n << " shuffle seed " << n << ": "
                               << report.error;
      fmt::print("{:>16} {:>5} ranks {:>9} steps {:>9} messages {:.2f} s\n", c.algorithm->name, n,
                 report.steps, report.messages, watch.seconds());
    }
}

}  // namespace
}  // namespace treering
