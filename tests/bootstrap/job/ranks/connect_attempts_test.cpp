// SPDX-License-Identifier: Apache-2.0
// When a rank tries again to connect to another one, and what it says when it gives up.
#include "bootstrap/job/ranks/connect_attempts.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point kNow = Clock::time_point() + seconds(100);
const Status kRefused(trRemoteError, "refused"), kAtLimit(trSystemError, "too many open files");

TEST(ConnectAttempts, TheyTakeAQuarterOfTheTimeoutWithinLimits) {
  EXPECT_EQ(ConnectAttempts(false, 20'000, kNow).deadline(), kNow + seconds(5));
  EXPECT_EQ(ConnectAttempts(false, 1'000, kNow).deadline(), kNow + kMinConnectTime);
  EXPECT_EQ(ConnectAttempts(false, 1'000'000, kNow).deadline(), kNow + kMaxConnectTime);
  EXPECT_EQ(ConnectAttempts(false, 0, kNow).deadline(), kNow + kMaxConnectTime);
}

TEST(ConnectAttempts, PausesDoubleUntilNoAttemptIsLeft) {
  ConnectAttempts attempts(false, 0, kNow);
  Clock::duration expected = kConnectPause;
  for (uint32_t made = 1; made < kMaxConnectAttempts; ++made, expected *= 2) {
    const auto next = attempts.dropped("closed");
    ASSERT_TRUE(next.pause) << made;
    EXPECT_EQ(*next.pause, expected);
  }
  const auto last = attempts.dropped("closed");
  EXPECT_FALSE(last.pause);
  EXPECT_EQ(last.failure.code(), trRemoteError);
  EXPECT_EQ(last.failure.message(), "closed");
}

TEST(ConnectAttempts, ARefusalCountsWhenItLasts) {
  ConnectAttempts attempts(false, 0, kNow);
  for (uint32_t left = kMaxConnectAttempts; left > kRefusals; --left)
    EXPECT_TRUE(attempts.not_reached(kRefused, true).pause) << left;
  const auto last = attempts.not_reached(kRefused, true);
  EXPECT_FALSE(last.pause);
  EXPECT_EQ(last.failure.code(), trSystemError);
  EXPECT_EQ(last.failure.message(), "refused");
  EXPECT_FALSE(last.at_own_limit);
}

TEST(ConnectAttempts, OtherFailuresCountAtOnce) {
  ConnectAttempts mute(false, 0, kNow), again(true, 0, kNow);
  const auto timed_out = mute.not_reached({trTimeout, "no answer"}, false);
  EXPECT_FALSE(timed_out.pause);
  EXPECT_EQ(timed_out.failure.code(), trTimeout);
  const auto refused = again.not_reached(kRefused, true);
  EXPECT_FALSE(refused.pause) << "the link itself connects again";
  EXPECT_EQ(refused.failure.code(), trRemoteError);
}

TEST(ConnectAttempts, DescriptorsMayBeClosedMeanwhile) {
  for (const bool again : {false, true}) {
    ConnectAttempts attempts(again, 0, kNow);
    for (uint32_t left = kMaxConnectAttempts; left > kRefusals; --left) {
      const auto next = attempts.not_reached(kAtLimit, false);
      EXPECT_TRUE(next.pause) << left;
      EXPECT_FALSE(next.at_own_limit);
    }
    const auto last = attempts.not_reached(kAtLimit, false);
    EXPECT_FALSE(last.pause);
    EXPECT_TRUE(last.at_own_limit);
    EXPECT_EQ(last.failure.message(), "too many open files");
  }
}

}  // namespace
}  // namespace treering
