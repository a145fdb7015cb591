// SPDX-License-Identifier: Apache-2.0
#include "laps.h"

#include <gtest/gtest.h>

namespace treering::perf {
namespace {

// The median of turns that take 2 us each, but for turn `slow`, which takes `slow_us`; how often the clock was read.
struct Outcome {
  double median_us;
  int readings;
};
Outcome run(int turns, int slow, double slow_us) {
  Laps laps(turns);
  double now = 1000;
  int readings = 0;
  const auto clock = [&] { return ++readings, now; };
  laps.begin(now);
  for (int turn = 0; turn < turns; ++turn) {
    now += turn == slow ? slow_us : 2;
    laps.turn_done(clock);
  }
  laps.end(clock);
  return {laps.median_us(), readings};
}

TEST(Median, OfOddEvenAndNoTimes) {
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({7, 1, 3, 5}), 4);
  EXPECT_EQ(median({2}), 2);
  EXPECT_EQ(median({}), 0);
}

TEST(Laps, OneSlowTurnLeavesTheMedianAsItIs) {
  for (const int turns : {3, 5, 10, 11, 20, 1000})
    for (const int slow : {0, turns / 2, turns - 1})
      EXPECT_DOUBLE_EQ(run(turns, slow, 1e6).median_us, 2) << turns << " " << slow;
  EXPECT_DOUBLE_EQ(run(1, 0, 7).median_us, 7);
}

TEST(Laps, TheClockIsReadOnceALap) {
  for (const int turns : {1, 5, 10, 11, 20, 23, 1000, 1001}) {
    EXPECT_LE(run(turns, 0, 2).readings, Laps::kMaxLaps) << turns;
    EXPECT_GE(run(turns, 0, 2).readings, std::min(turns, 5)) << turns;
  }
}

}  // namespace
}  // namespace treering::perf
