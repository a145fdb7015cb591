// SPDX-License-Identifier: Apache-2.0
// Parts of the tree, each with a top of its own: which one looks for the other.
#include <gtest/gtest.h>

#include "bootstrap/job/detectors.h"

namespace treering {
namespace {

using testing::Detector;
using testing::kNow;
using testing::silence_of;
using Numbers = std::vector<uint32_t>;
using std::chrono::milliseconds;
using Next = FailureDetector::Step::Next;
using Answer = FailureDetector::Answer;

TEST(Parts, TheTopLooksForAProcessOfALowerNumberThatDoesNotHangFromIt) {
  const Numbers parents = {kNobody, 0, kNobody, 2};
  Detector detector(2, parents);
  EXPECT_EQ(detector.other_part(kNow), 0u);
  EXPECT_EQ(Detector(0, parents).other_part(kNow), kNobody);  // it is found by the other top
  EXPECT_TRUE(detector.take_loss(0, kNow));
  EXPECT_EQ(detector.other_part(kNow), 1u);
  detector.tree->rank_left(1);
  EXPECT_EQ(detector.other_part(kNow), kNobody);
  detector.tree->attach_to(3);
  EXPECT_EQ(detector.other_part(kNow), kNobody);  // it is no top any more
}

TEST(Parts, ATopAttachesToASilentProcessOfALowerNumberOnceThatListens) {
  Detector detector(2, {kNobody, 0, kNobody, 2, 0}, {1, 2, 3, 4});  // process 0 holds no rank
  for (uint32_t process : {0, 1, 4}) EXPECT_TRUE(detector.take_silence(silence_of(process), kNow));
  for (uint32_t expected : {1, 0, 1, 0}) EXPECT_EQ(detector.next_unreached(kNow), expected) << "each in turn";
  EXPECT_EQ(detector.probed(0, Answer::kNone, kNow).next, Next::kNothing);
  EXPECT_EQ(detector.probed(0, Answer::kListens, kNow).next, Next::kAttach);
  EXPECT_EQ(detector.probed(1, Answer::kListens, kNow).next, Next::kAttach);
  EXPECT_EQ(detector.probed(4, Answer::kListens, kNow).next, Next::kNothing) << "it comes itself";
  detector.take_heard(1);
  EXPECT_EQ(detector.next_unreached(kNow), 0u);
  EXPECT_EQ(detector.probed(0, Answer::kRefuses, kNow).next, Next::kNothing);
  for (uint32_t process : {1, 4}) {
    EXPECT_EQ(detector.next_unreached(kNow), 0u) << "process " << process << " may hang from it";
    detector.tree->add_child(process);
  }
  EXPECT_EQ(detector.next_unreached(kNow), std::nullopt) << "a relay from which none hangs is needed no more";
}

// Process 0 holds no rank.
TEST(Parts, ATopLooksForARelayWhileRanksAreMissing) {
  Detector detector(1, {kNobody, 0, 0, 1}, {1, 2, 3});
  EXPECT_EQ(detector.next_unreached(kNow), std::nullopt) << "this is no top";
  detector.tree->become_top();
  EXPECT_EQ(detector.next_unreached(kNow), 0u) << "it could not be reached, for whatever reason";
  detector.relay_is_gone(0, kNow);
  EXPECT_EQ(detector.next_unreached(kNow), 0u) << "something may have refused in its place";
  EXPECT_FALSE(detector.is_idle(true, kNow));
  EXPECT_EQ(detector.probed(0, Answer::kListens, kNow).next, Next::kAttach);
  detector.tree->rank_left(1);  // of process 2
  EXPECT_EQ(detector.next_unreached(kNow), std::nullopt) << "none is missing";
  EXPECT_EQ(detector.probed(0, Answer::kListens, kNow).next, Next::kNothing);
}

TEST(Parts, ATopLooksForARelayThatIsNotItsParent) {
  Detector detector(2, {kNobody, 0, 1, 0}, {1, 2, 3});
  detector.tree->become_top();
  detector.tree->rank_left(0);  // of process 1, which ends
  detector.relay_is_gone(1, kNow);
  for (uint32_t expected : {1, 0}) EXPECT_EQ(detector.next_unreached(kNow), expected) << "each in turn";
}

TEST(Parts, OfTwoTopsTheOneWithTheHigherNumberLooks) {
  const Numbers parents = {kNobody, kNobody, kNobody, 2}, ranks = {1, 3};  // 0 and 2 hold no rank
  EXPECT_EQ(Detector(1, parents, ranks).next_unreached(kNow), 0u);
  EXPECT_EQ(Detector(1, parents, ranks).other_part(kNow), kNobody);
  EXPECT_EQ(Detector(2, parents, ranks).other_part(kNow), 1u);
}

TEST(Parts, ARelayThatHeldRanksIsLookedForDuringAWhile) {
  Detector detector(1, {kNobody, 0, 0});
  detector.tree->become_top();
  detector.tree->rank_left(0);
  EXPECT_EQ(detector.next_unreached(kNow), 0u);
  EXPECT_EQ(detector.next_unreached(kNow + kSeekRelayTimeout - milliseconds(1)), 0u);
  EXPECT_FALSE(detector.is_idle(true, kNow + kSeekRelayTimeout - milliseconds(1)));
  EXPECT_EQ(detector.next_unreached(kNow + kSeekRelayTimeout), std::nullopt);
  EXPECT_TRUE(detector.is_idle(true, kNow + kSeekRelayTimeout)) << "2 may have left without a trace";
  // Ranks are missing again after a time in which none was.
  const auto later = kNow + 2 * kSeekRelayTimeout;
  detector.tree->add_child(2);
  EXPECT_EQ(detector.next_unreached(later), std::nullopt);
  detector.tree->remove(2);
  EXPECT_EQ(detector.next_unreached(later + milliseconds(1)), 0u);
}

TEST(Parts, ASilentProcessWhoseRanksHaveLeftIsNotLookedForWhereNoneIsMissing) {
  Detector detector(2, {kNobody, 0, kNobody});
  detector.tree->add_child(0);
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  EXPECT_EQ(detector.next_unreached(kNow), 1u);
  detector.tree->rank_left(1);
  EXPECT_EQ(detector.next_unreached(kNow), std::nullopt);
}

TEST(Parts, WhatHangsFromTheTopIsReachedAndOnlyATopLooks) {
  Detector top(2, {kNobody, 2, kNobody, kNobody, 1});
  EXPECT_TRUE(top.take_silence(silence_of(1), kNow));
  EXPECT_EQ(top.next_unreached(kNow), std::nullopt) << "a child";
  Detector below(1);
  EXPECT_TRUE(below.take_silence(silence_of(0), kNow));
  EXPECT_EQ(below.next_unreached(kNow), std::nullopt) << "the parent: the search for another one goes first";
  below.tree->become_top();
  EXPECT_EQ(below.next_unreached(kNow), 0u);
}

TEST(Parts, AChildIsNoOtherPartWhateverIsToldOfItsParent) {
  Detector detector(2, {kNobody, 0, kNobody});
  detector.tree->add_child(0);
  detector.tree->add_child(1);
  EXPECT_EQ(detector.other_part(kNow), kNobody);
}

}  // namespace
}  // namespace treering
