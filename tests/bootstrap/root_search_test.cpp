// SPDX-License-Identifier: Apache-2.0
// How long a process tries to reach the rendezvous root, and what it says when it gives up.
#include "bootstrap/root_search.h"

#include <gtest/gtest.h>

#include <string>

namespace treering {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point kNow = Clock::time_point() + seconds(100);
constexpr Clock::time_point kDeadline = kNow + seconds(60);
constexpr uint64_t kHere = 7, kElsewhere = 8;  // network namespaces
const Status kRefused(trRemoteError, "refused");

UniqueId id_of(uint32_t root_pid) {
  UniqueId id{};
  id.root_pid = root_pid;
  id.root_network = kHere;
  return id;
}

TEST(RootSearch, OneOfThisMachineThatIsGoneIsNotTriedAgain) {
  const RootSearch search(id_of(17), kHere, kNow, kDeadline);
  const auto failure = search.failed(kRefused, DialEnd::kRefused, kNow);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), trRemoteError);
  EXPECT_EQ(failure->message(),
            "the process that made the unique id (pid 17) cannot be reached: it has ended, or all its ranks have met "
            "already or failed to meet, or no network leads to it: refused");
}

TEST(RootSearch, OneThatDoesNotTakeThisProcessIsTriedForAWhile) {
  const RootSearch near(id_of(17), kHere, kNow, kDeadline), far(id_of(17), kElsewhere, kNow, kDeadline);
  EXPECT_FALSE(near.failed(kRefused, DialEnd::kFailed, kNow + RootSearch::kNearTimeout));
  EXPECT_TRUE(near.failed(kRefused, DialEnd::kFailed, kNow + RootSearch::kNearTimeout + milliseconds(1)));
  EXPECT_FALSE(far.failed(kRefused, DialEnd::kRefused, kNow + RootSearch::kGoneTimeout));
  EXPECT_TRUE(far.failed(kRefused, DialEnd::kRefused, kNow + RootSearch::kGoneTimeout + milliseconds(1)));
}

TEST(RootSearch, ANetworkThatLeadsNowhereMayComeBackUntilTheDeadline) {
  RootSearch search(id_of(17), kElsewhere, kNow, kDeadline);
  const Status unreachable(trRemoteError, "No route to host");
  EXPECT_FALSE(search.failed(unreachable, DialEnd::kNoAnswer, kNow + 2 * RootSearch::kGoneTimeout));
  EXPECT_TRUE(search.failed(unreachable, DialEnd::kNoAnswer, kDeadline - RootSearch::kRetry));
  EXPECT_EQ(search.news(unreachable, kNow + RootSearch::kTold - milliseconds(1)), "");
  EXPECT_EQ(search.news(unreachable, kNow + RootSearch::kTold),
            "the process that made the unique id (pid 17) has not been reached for 10 s: No route to host");
  EXPECT_EQ(search.news(unreachable, kNow + RootSearch::kTold + milliseconds(1)), "") << "again in ten seconds";
}

TEST(RootSearch, OneThatWasAgreedOnMayComeUntilTheDeadline) {
  for (const uint64_t network : {kHere, kElsewhere}) {
    const RootSearch search(id_of(0), network, kNow, kDeadline);
    const auto last = kDeadline - 4 * RootSearch::kRetry;
    EXPECT_FALSE(search.failed(kRefused, DialEnd::kRefused, last));
    const auto failure = search.failed(kRefused, DialEnd::kRefused, last + milliseconds(1));
    ASSERT_TRUE(failure);
    EXPECT_EQ(
        failure->message(),
        "rank 0, at MASTER_ADDR and the port after MASTER_PORT, cannot be reached: it has not come, or has another "
        "TREERING_SECRET (or torchrun's run id), or has ended, or all its ranks have met already or failed to "
        "meet, or no network leads to it: refused");
  }
}

TEST(RootSearch, TheDeadlineAndTheLimitsOfThisProcessEndIt) {
  const RootSearch search(id_of(0), kElsewhere, kNow, kDeadline);
  EXPECT_EQ(search.attempt_until(kNow), kNow + RootSearch::kTold);
  EXPECT_EQ(search.attempt_until(kDeadline - seconds(1)), kDeadline);
  EXPECT_FALSE(search.failed({trTimeout, "no answer"}, DialEnd::kNoAnswer, kNow + RootSearch::kTold));
  const auto late = search.failed({trTimeout, "no answer"}, DialEnd::kNoAnswer, kDeadline);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->code(), trTimeout);
  const auto limit = search.failed({trSystemError, "too many open files"}, DialEnd::kFailed, kNow);
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->message(), "this process: too many open files");
}

TEST(RootSearch, ARootThatHasEndedSaysHow) {
  EXPECT_EQ(RootSearch::ended_here(true).message(),
            "the ranks of this unique id, which this process made, have met already; make a new one");
  EXPECT_EQ(RootSearch::ended_here(false).message(),
            "the ranks of this unique id, which this process made, have failed to meet; make a new one");
}

}  // namespace
}  // namespace treering
