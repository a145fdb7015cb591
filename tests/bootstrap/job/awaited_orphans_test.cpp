// SPDX-License-Identifier: Apache-2.0
// Whether a top waits for children of others, who have yet to hear of a verdict or who has left. On times that the test
// makes up.
#include "bootstrap/job/failure_detector.h"

#include <gtest/gtest.h>

#include "bootstrap/job/detectors.h"

namespace treering {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Detector;
using testing::kNow;
using testing::kParents;
using testing::silence_of;

TEST(AwaitedOrphans, OfALostProcessAreAwaitedForAWhile) {
  Detector detector(0);
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, kNow));
  EXPECT_TRUE(detector.take_loss(1, kNow));
  EXPECT_TRUE(detector.awaits_orphans({}, kNow, kNow));
  EXPECT_TRUE(detector.awaits_orphans({}, kNow, kNow + kOrphansTimeout - milliseconds(1)));
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, kNow + kOrphansTimeout));
}

TEST(AwaitedOrphans, ThatCameLeftOrEndedAreNotAwaited) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_loss(1, kNow));
  detector.tree->add_child(3);
  EXPECT_TRUE(detector.awaits_orphans({}, kNow, kNow));  // 4
  detector.tree->rank_left(4);
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, kNow));
  Detector other(0);
  EXPECT_TRUE(other.take_loss(1, kNow));
  EXPECT_TRUE(other.take_loss(3, kNow - seconds(60)));  // so 5 is not awaited any more, either
  EXPECT_FALSE(other.awaits_orphans({4}, kNow, kNow));  // 4 did not answer
}

TEST(AwaitedOrphans, OfASilentProcessAreAwaitedFromWhenTheyNotice) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_silence(silence_of(3, 1000), kNow));
  const auto since = kNow - seconds(1) + kNoticesSilence;
  EXPECT_TRUE(detector.awaits_orphans({}, kNow, since + kOrphansTimeout - milliseconds(1)));
  EXPECT_TRUE(detector.awaits_orphans({}, {}, since));  // also without a verdict: for those that have left
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, since + kOrphansTimeout));
}

TEST(AwaitedOrphans, GetTheirTimeFromWhenThisProcessBecameTheTop) {
  Detector detector(1);
  EXPECT_TRUE(detector.take_silence(silence_of(0, 1000), kNow));
  detector.tree->remove(0);
  detector.tree->become_top();
  const auto top = kNow + seconds(9);  // others did not answer either
  detector.become_top(top);
  EXPECT_TRUE(detector.awaits_orphans({}, {}, top + kOrphansTimeout - milliseconds(1)));  // 2, a child of 0
  EXPECT_FALSE(detector.awaits_orphans({}, {}, top + kOrphansTimeout));
}

TEST(AwaitedOrphans, OfAProcessThatLeftAreAwaitedWhereNoChildRelays) {
  Detector detector(0);
  detector.tree->rank_left(3);
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, kNow));  // 3 may be below 1
  (void)detector.listen(1, kSilence);
  (void)detector.listen(2, kSilence);
  EXPECT_TRUE(detector.awaits_orphans({}, kNow, kNow));
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, kNow + kOrphansTimeout));
  detector.relay_is_gone(3, kNow);
  EXPECT_FALSE(detector.awaits_orphans({}, {}, kNow)) << "there is no verdict to tell, and all seems to be over";
}

TEST(AwaitedOrphans, OfAProcessWithoutRanksThatIsGoneAreAwaitedAlsoWithoutAVerdict) {
  Detector detector(0, kParents, {0, 1, 2, 4, 5});  // 3 holds none, 5 hangs from it
  for (uint32_t child : {1u, 2u}) detector.tree->remove(child);
  EXPECT_FALSE(detector.awaits_orphans({}, {}, kNow));
  detector.relay_is_gone(3, kNow);
  EXPECT_TRUE(detector.awaits_orphans({}, {}, kNow));
  EXPECT_FALSE(detector.awaits_orphans({}, {}, kNow + kOrphansTimeout));
}

TEST(AwaitedOrphans, OnlyTheTopAwaits) {
  Detector detector(1);
  EXPECT_TRUE(detector.take_loss(3, kNow));
  EXPECT_FALSE(detector.awaits_orphans({}, kNow, kNow));
}

TEST(AwaitedOrphans, OfABrokenConnectionAndOfAMuteProcessAreAwaited) {
  Detector broken(0);
  broken.breaks(1, 0);
  EXPECT_TRUE(broken.awaits_orphans({}, kNow, kNow));
  EXPECT_FALSE(broken.awaits_orphans({}, kNow, kNow + kOrphansTimeout));
  Detector mute(0);
  mute.tree->remove(1);
  mute.become_top(kNow);
  EXPECT_FALSE(mute.awaits_orphans({}, kNow, kNow));
  EXPECT_TRUE(mute.awaits_orphans({1}, kNow, kNow));
  EXPECT_FALSE(mute.awaits_orphans({1}, kNow, kNow + kOrphansTimeout));
}

}  // namespace
}  // namespace treering
