// SPDX-License-Identifier: Apache-2.0
// Since when the deadline of an operation counts, with made-up times.
#include "failure/wait_time.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

using std::chrono::seconds;

const Clock::time_point kBegin = Clock::now();
Clock::time_point at(int second) { return kBegin + seconds(second); }

TEST(WaitTime, OfAnOperationThatMovesCountsFromItsLastStep) {
  WaitTime wait(at(-9));
  EXPECT_EQ(wait.since({}), at(-9)) << "of the creation";
  wait.begin(at(0), 7);
  EXPECT_FALSE(wait.look(at(1), 7));
  EXPECT_EQ(wait.since({}), at(0));
  for (int second = 2; second < 1000; ++second) {
    EXPECT_TRUE(wait.look(at(second), 7 + static_cast<uint64_t>(second)));
    EXPECT_EQ(wait.since({}), at(second));
  }
}

TEST(WaitTime, ForARankWithoutAConnectionCountsFromTheMomentWhenItWasLost) {
  WaitTime wait(at(0));
  wait.begin(at(0), 0);
  EXPECT_TRUE(wait.look(at(3), 1));
  EXPECT_EQ(wait.since(at(2)), at(2)) << "what moves comes from others";
  EXPECT_TRUE(wait.look(at(5), 2));
  EXPECT_EQ(wait.since(at(2)), at(2));
  EXPECT_EQ(wait.since({}), at(5)) << "it is there again";
  EXPECT_EQ(wait.since(at(6)), at(5)) << "nothing has moved before it was lost";
}

// A new operation has its whole deadline.
TEST(WaitTime, ForARankWithoutAConnectionCountsFromTheBeginAtTheEarliest) {
  WaitTime wait(at(0));
  wait.begin(at(0), 0);
  EXPECT_TRUE(wait.look(at(1), 1));
  wait.begin(at(4), 1);
  EXPECT_EQ(wait.since(at(1)), at(4));
  EXPECT_TRUE(wait.look(at(7), 2));
  EXPECT_EQ(wait.since(at(1)), at(4));
}

}  // namespace
}  // namespace treering
