// SPDX-License-Identifier: Apache-2.0
#include "collective.h"
#include "formulas.h"

#include <gtest/gtest.h>

#include "report.h"

namespace treering::perf {
namespace {

TEST(ParseSize, TakesPowersOf1024) {
  EXPECT_EQ(parse_size("8"), 8u);
  EXPECT_EQ(parse_size("64K"), 65536u);
  EXPECT_EQ(parse_size("64k"), 65536u);
  EXPECT_EQ(parse_size("32M"), size_t{32} << 20);
  EXPECT_EQ(parse_size("3G"), size_t{3} << 30);
  EXPECT_EQ(parse_size("8191T"), size_t{8191} << 40);
  EXPECT_EQ(parse_size("1.5K"), 1536u);
  EXPECT_EQ(parse_size("0"), 0u);
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "K", "-8", "8X", "8KB", "1.3", "1e3", "0x10", "1..5K", " 8", "8 ", "99999999999G"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(FormatSize, NamesWholeUnitsOnly) {
  EXPECT_EQ(format_size(8), "8 B");
  EXPECT_EQ(format_size(65536), "64 KiB");
  EXPECT_EQ(format_size(1536), "1536 B");
  EXPECT_EQ(format_size(size_t{2} << 30), "2 GiB");
}

TEST(SizeSequence, ByFactorAndByStep) {
  EXPECT_EQ(size_sequence(8, 64, 1, 2), (std::vector<size_t>{8, 16, 32, 64}));
  EXPECT_EQ(size_sequence(8, 63, 1, 2), (std::vector<size_t>{8, 16, 32}));
  EXPECT_EQ(size_sequence(10, 30, 10, 1), (std::vector<size_t>{10, 20, 30}));
  EXPECT_EQ(size_sequence(5, 5, 0, 1), (std::vector<size_t>{5}));
}

TEST(Bandwidth, IsThatOfNcclTests) {
  // 1 MB in 1000 us is 1 GB/s; n ranks of a ring carry 2(n-1)/n of it.
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(1000000, 1000), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(*find_case("allreduce"), 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(*find_case("allreduce"), 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(*find_case("allreduce"), 1), 0.0);
  EXPECT_DOUBLE_EQ(bus_factor(*find_case("allgather"), 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(*find_case("broadcast"), 4), 1.0);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(1000000, 0), 0.0);
}

TEST(Limit, IsLeastTrafficOverCopyBandwidth) {
  // 2 x 4 ranks x 1 MB over 8 GB/s.
  EXPECT_DOUBLE_EQ(limit_us(1000000, 4, 8.0), 1000.0);
  EXPECT_DOUBLE_EQ(limit_us(1000000, 4, 0.0), 0.0);
}

TEST(IterationStats, OfOneToHundred) {
  std::vector<double> times;
  for (int i = 100; i >= 1; --i) times.push_back(i);
  const IterationStats stats = iteration_stats(times);
  EXPECT_EQ(stats.min, 1);
  EXPECT_EQ(stats.max, 100);
  EXPECT_EQ(stats.p95, 95);
  EXPECT_EQ(stats.p99, 99);
  EXPECT_DOUBLE_EQ(stats.average, 50.5);
  EXPECT_NEAR(stats.stdev, 28.866, 1e-3);
  EXPECT_NEAR(stats.cv_percent, 57.161, 1e-3);
}

TEST(IterationStats, OfOneAndOfNone) {
  EXPECT_EQ(iteration_stats({7}).p99, 7);
  EXPECT_EQ(iteration_stats({7}).cv_percent, 0);
  EXPECT_EQ(iteration_stats({}).max, 0);
}

TEST(Combine, FollowsTheOption) {
  const std::vector<double> times = {3, 1, 5};
  EXPECT_EQ(combine(Averaging::kRankZero, times), 3);
  EXPECT_EQ(combine(Averaging::kMean, times), 3);
  EXPECT_EQ(combine(Averaging::kMin, times), 1);
  EXPECT_EQ(combine(Averaging::kMax, times), 5);
}

TEST(Fit, KeepsToTheWidth) {
  EXPECT_EQ(fit(1.234, 7), "1.23");
  EXPECT_EQ(fit(123456.7, 7), "123457");
  EXPECT_EQ(fit(12345.67, 7), "12345.7");
  EXPECT_EQ(fit(123456789.0, 7), "1.2e+08");
  EXPECT_EQ(fit(99999.9, 6), "100000");
}

}  // namespace
}  // namespace treering::perf
