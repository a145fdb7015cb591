// SPDX-License-Identifier: Apache-2.0
// When a rank that waits says who holds it up, with made-up times.
#include "failure/wait_warning.h"

#include <gtest/gtest.h>

#include <vector>

namespace treering {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Clock::time_point kBegin = Clock::now();
constexpr Clock::duration kNotLate{};

// The seconds after the begin at which it says something, where nothing moves after `since`.
std::vector<int> said(WaitWarning* warning, int from, int to, int since) {
  std::vector<int> at;
  for (auto time = seconds(from) + milliseconds(0); time < seconds(to); time += milliseconds(20))
    if (warning->look(kBegin + time, kBegin + seconds(since), kNotLate) == WaitWarning::Next::kSay)
      at.push_back(static_cast<int>(time / seconds(1)));
  return at;
}

TEST(WaitWarning, ComesAfterEachDoubling) {
  WaitWarning warning(seconds(10));
  EXPECT_EQ(said(&warning, 0, 100, 0), (std::vector<int>{10, 20, 40, 80}));
}

TEST(WaitWarning, BeginsAnewWhenSomethingMoves) {
  WaitWarning warning(seconds(10));
  EXPECT_EQ(said(&warning, 0, 100, 0), (std::vector<int>{10, 20, 40, 80}));
  EXPECT_EQ(said(&warning, 100, 125, 100), (std::vector<int>{110, 120}));
}

TEST(WaitWarning, AsksFirst) {
  WaitWarning warning(seconds(10));
  EXPECT_EQ(warning.look(kBegin + seconds(10), kBegin, kNotLate), WaitWarning::Next::kAsk);
  EXPECT_EQ(warning.look(kBegin + milliseconds(10'500), kBegin, kNotLate), WaitWarning::Next::kNothing);
  EXPECT_EQ(warning.look(kBegin + milliseconds(10'700), kBegin, kNotLate), WaitWarning::Next::kSay);
  EXPECT_EQ(warning.look(kBegin + milliseconds(10'800), kBegin, kNotLate), WaitWarning::Next::kNothing);
}

TEST(WaitWarning, SaysNothingThatMovedMeanwhileOrThatOthersSay) {
  WaitWarning warning(seconds(10));
  EXPECT_EQ(warning.look(kBegin + seconds(10), kBegin, kNotLate), WaitWarning::Next::kAsk);
  EXPECT_EQ(warning.look(kBegin + seconds(11), kBegin + seconds(11), kNotLate), WaitWarning::Next::kNothing);
  EXPECT_EQ(warning.look(kBegin + seconds(21), kBegin + seconds(11), kNotLate), WaitWarning::Next::kAsk);
  warning.leave_to_others();
  EXPECT_EQ(warning.look(kBegin + seconds(22), kBegin + seconds(11), kNotLate), WaitWarning::Next::kNothing);
}

TEST(WaitWarning, OfAProcessThatWasStoppedCountsFromWhenItRuns) {
  WaitWarning warning(seconds(10));
  EXPECT_EQ(warning.look(kBegin + seconds(3600), kBegin, seconds(3599)), WaitWarning::Next::kNothing);
  EXPECT_EQ(said(&warning, 3600, 3625, 0), (std::vector<int>{3610, 3620}));
}

TEST(WaitWarning, MayBeSwitchedOff) {
  WaitWarning warning(seconds(0));
  EXPECT_EQ(warning.look(kBegin + seconds(100'000), kBegin, kNotLate), WaitWarning::Next::kNothing);
}

}  // namespace
}  // namespace treering
