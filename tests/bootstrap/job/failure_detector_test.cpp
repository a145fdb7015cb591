// SPDX-License-Identifier: Apache-2.0
// Who counts as lost, silent or cut off, on times that the test makes up.
#include "bootstrap/job/failure_detector.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "bootstrap/job/detectors.h"

namespace treering {
namespace {

using testing::Detector;
using testing::kNow;
using testing::kParents;
using testing::silence_of;
using testing::tree_at;
using Numbers = std::vector<uint32_t>;
using Next = FailureDetector::Step::Next;
using Answer = FailureDetector::Answer;
using Change = FailureDetector::Change;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Losses and silences

TEST(FailureDetector, ALossIsNewOnceAndForGood) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_loss(3, kNow));
  EXPECT_FALSE(detector.take_loss(3, kNow));
  EXPECT_TRUE(detector.is_lost(3));
  EXPECT_FALSE(detector.take_silence(silence_of(3), kNow));
  EXPECT_FALSE(detector.take_move(3));
  EXPECT_TRUE(detector.is_lost(3));
}

TEST(FailureDetector, TheProcessItselfIsNeverLost) {
  Detector detector(1);
  EXPECT_FALSE(detector.take_loss(1, kNow));
  EXPECT_FALSE(detector.is_lost(1));
}

TEST(FailureDetector, ASilenceLastsSinceTheLastSign) {
  Detector detector(0, kParents, {0, 1, 1, 2, 3, 4, 5});
  EXPECT_TRUE(detector.take_silence(silence_of(1, 3000), kNow));
  EXPECT_TRUE(detector.take_silence(silence_of(4), kNow));  // not measured
  EXPECT_FALSE(detector.take_silence(silence_of(1, 9000), kNow));
  const auto silent = detector.silent_ranks();
  ASSERT_EQ(silent.size(), 2u);
  EXPECT_EQ(silent[0].ranks, (Numbers{1, 2}));
  EXPECT_EQ(silent[0].reason, "ranks 1, 2 (pid 1001 on a): its process does not answer");
  EXPECT_EQ(silent[0].since, kNow - seconds(3));
  EXPECT_TRUE(silent[0].timed);
  EXPECT_EQ(silent[1].since, kNow - kSilence);
  EXPECT_FALSE(silent[1].timed);
}

TEST(FailureDetector, SilenceEndsWithASignOrAMove) {
  Detector detector(0);
  EXPECT_FALSE(detector.take_heard(1));
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  EXPECT_TRUE(detector.take_heard(1));
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  EXPECT_TRUE(detector.take_move(1));
  EXPECT_TRUE(detector.silent_ranks().empty());
}

TEST(FailureDetector, ASilentProcessWithoutRanksConcernsNoUser) {
  Detector detector(0, kParents, {0, 1, 2, 3, 4});
  EXPECT_TRUE(detector.take_silence(silence_of(5), kNow));
  EXPECT_TRUE(detector.is_silent(5));
  EXPECT_TRUE(detector.silent_ranks().empty());
}

// Neighbours

TEST(FailureDetector, ANeighbourFallsSilentOnceAndAnswersAgainOnce) {
  Detector detector(0);
  EXPECT_EQ(detector.listen(1, kSilence - milliseconds(1)).change, Change::kNone);
  const auto falls = detector.listen(1, kSilence);
  EXPECT_EQ(falls.change, Change::kFellSilent);
  EXPECT_TRUE(falls.warn);
  EXPECT_TRUE(falls.spread);
  EXPECT_EQ(detector.listen(1, kSilence * 2).change, Change::kNone);
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));  // as it was spread
  const auto answers = detector.listen(1, milliseconds(0));
  EXPECT_EQ(answers.change, Change::kAnswersAgain);
  EXPECT_TRUE(answers.warn);
  EXPECT_TRUE(answers.spread);
  EXPECT_EQ(detector.listen(1, milliseconds(0)).change, Change::kNone);
}

TEST(FailureDetector, ASilenceThatIsKnownIsNotToldAgain) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  const auto falls = detector.listen(1, kSilence);
  EXPECT_EQ(falls.change, Change::kFellSilent);  // this process seeks another parent all the same
  EXPECT_FALSE(falls.warn);
  EXPECT_FALSE(falls.spread);
  EXPECT_FALSE(detector.listen(1, milliseconds(0)).warn);
}

TEST(FailureDetector, TheSilenceOfAProcessThatLeftIsSpreadWithoutAWarning) {
  Detector detector(0);
  detector.tree->rank_left(1);
  const auto falls = detector.listen(1, kSilence);
  EXPECT_TRUE(falls.spread);
  EXPECT_FALSE(falls.warn);
}

TEST(FailureDetector, ANewConnectionIsHeard) {
  Detector detector(0);
  (void)detector.listen(1, kSilence);
  (void)detector.listen(2, kSilence);
  EXPECT_FALSE(detector.hears_a_child());
  detector.connected(2);
  EXPECT_TRUE(detector.hears_a_child());
  EXPECT_FALSE(Detector(5).hears_a_child());  // has none
}

// Connections that ended

TEST(FailureDetector, AProcessWhosePidHasEndedIsLost) {
  Detector detector(0);
  detector.breaks(1, 77);
  EXPECT_EQ(detector.pid_of_broken(1), 77);
  EXPECT_EQ(detector.pid_of_broken(2), 0);
  const auto step = detector.examine(1, true, true, kNow);
  EXPECT_EQ(step.next, Next::kTellLost);
  EXPECT_EQ(step.text, "its process has ended without leaving (reset)");
  EXPECT_TRUE(detector.has_ended(1));
  EXPECT_FALSE(detector.is_lost(1));
  EXPECT_TRUE(detector.conclude_loss(1));
  EXPECT_FALSE(detector.has_ended(1));
  EXPECT_TRUE(detector.take_loss(1, kNow));
  EXPECT_FALSE(detector.conclude_loss(1));  // known
}

TEST(FailureDetector, ALocalProcessThatIsThereIsWatchedForItsDeathAndThenProbed) {
  Detector detector(0);
  detector.breaks(1, 77);
  const auto step = detector.examine(1, false, true, kNow + kReturnTimeout - milliseconds(1));
  EXPECT_EQ(step.next, Next::kExamineAgain);
  EXPECT_EQ(step.after, kDeathPeriod);
  EXPECT_EQ(detector.examine(1, false, true, kNow + kReturnTimeout).next, Next::kProbe);
}

TEST(FailureDetector, AProcessOfAnotherMachineIsProbedAtOnce) {
  Detector detector(0);
  detector.breaks(1, 0);
  EXPECT_EQ(detector.examine(1, false, true, kNow).next, Next::kProbe);
}

TEST(FailureDetector, WhileTheRanksMeetAProcessThatDoesNotComeBackIsLost) {
  Detector detector(0);
  detector.breaks(1, 0);
  const auto first = detector.examine(1, false, false, kNow);
  EXPECT_EQ(first.next, Next::kExamineAgain);
  EXPECT_EQ(first.after, kReturnTimeout);
  const auto second = detector.examine(1, false, false, kNow + kReturnTimeout);
  EXPECT_EQ(second.next, Next::kTellLost);
  EXPECT_EQ(second.text, "its connection has ended (reset), and it has not come back");
  detector.connection_ended(2, {.reason = "reset", .since = kNow, .was_reset = true});  // at this side alone, perhaps
  EXPECT_EQ(detector.examine(2, false, false, kNow + kReturnTimeout).next, Next::kExamineAgain);
  EXPECT_EQ(detector.examine(2, false, false, kNow + kReturnAfterReset).next, Next::kTellLost);
}

TEST(FailureDetector, OneThatCameBackIsNotExamined) {
  Detector detector(0);
  detector.breaks(1, 77);
  detector.connected(1);
  EXPECT_EQ(detector.examine(1, true, true, kNow).next, Next::kNothing);
  detector.breaks(1, 77);
  EXPECT_FALSE(detector.take_move(1));  // elsewhere in the tree
  EXPECT_EQ(detector.examine(1, true, true, kNow).next, Next::kNothing);
  EXPECT_EQ(detector.probed(1, Answer::kRefuses, kNow + seconds(9)).next, Next::kNothing);
  EXPECT_TRUE(detector.overdue(kNow + seconds(9)).empty());
}

TEST(FailureDetector, ARefusalCountsWhenItLasts) {
  Detector detector(0);
  detector.breaks(1, 0);
  const auto early = detector.probed(1, Answer::kRefuses, kNow + kReturnTimeout - milliseconds(1));
  EXPECT_EQ(early.next, Next::kExamineAgain);
  EXPECT_EQ(early.after, kReturnTimeout);
  const auto late = detector.probed(1, Answer::kRefuses, kNow + kReturnTimeout);
  EXPECT_EQ(late.next, Next::kTellLost);
  EXPECT_EQ(
      late.text,
      "its connection has ended (reset), and nothing listens at its addresses any more: it has ended, has closed its "
      "sockets, or something refuses connections in its place");
}

TEST(FailureDetector, NoAnswerIsASilenceAndNoLoss) {
  Detector detector(0);
  detector.breaks(1, 0);
  EXPECT_EQ(detector.probed(1, Answer::kNone, kNow + seconds(3)).next, Next::kTellSilent);
  EXPECT_EQ(detector.probed(1, Answer::kFailed, kNow + seconds(3)).next, Next::kNothing);
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  EXPECT_EQ(detector.probed(1, Answer::kNone, kNow + seconds(3)).next, Next::kNothing);  // known
  EXPECT_EQ(detector.overdue(kNow + seconds(3)), (Numbers{1}));                          // it is asked again
}

TEST(FailureDetector, AnAnswerEndsASilenceAndTheChildIsAwaitedFurther) {
  Detector detector(0);
  detector.breaks(1, 0);
  EXPECT_EQ(detector.probed(1, Answer::kListens, kNow).next, Next::kTellHeard);
  EXPECT_TRUE(detector.overdue(kNow + kReturnTimeout - milliseconds(1)).empty());
  EXPECT_EQ(detector.overdue(kNow + kReturnTimeout), (Numbers{1}));
}

TEST(FailureDetector, AFormerParentThatListensNeedNotComeBack) {
  Detector detector(1);
  detector.breaks(0, 0, true);
  EXPECT_EQ(detector.probed(0, Answer::kListens, kNow).next, Next::kTellHeard);
  EXPECT_TRUE(detector.has_ended(0));  // this process has no other parent yet
  detector.tree->attach_to(2);
  EXPECT_EQ(detector.probed(0, Answer::kListens, kNow).next, Next::kTellHeard);
  EXPECT_FALSE(detector.has_ended(0));
}

TEST(FailureDetector, AChildThatListensIsAwaitedThoughThisProcessHasAParent) {
  Detector detector(1);
  detector.breaks(3, 0);
  EXPECT_EQ(detector.probed(3, Answer::kListens, kNow).next, Next::kTellHeard);
  EXPECT_TRUE(detector.has_ended(3));
}

TEST(FailureDetector, ASilenceOnTheWayToAProcessSaysEnough) {
  Detector detector(0);
  detector.breaks(1, 0);
  EXPECT_EQ(detector.probed(1, Answer::kNone, kNow).next, Next::kTellSilent);
  detector.tree->move(1, 2);
  EXPECT_TRUE(detector.take_silence(silence_of(2, 4500), kNow));
  EXPECT_EQ(detector.probed(1, Answer::kNone, kNow).next, Next::kNothing);
}

TEST(FailureDetector, TheEndOfAProcessThatHasLeftIsNoLoss) {
  Detector detector(0);
  EXPECT_TRUE(detector.conclude_loss(1));
  detector.tree->rank_left(1);
  EXPECT_FALSE(detector.conclude_loss(1));
}

// The way to a process

TEST(FailureDetector, TheWayToTheTopIsCutByALossAfterAWhile) {
  Detector detector(0);
  EXPECT_EQ(detector.cut_at(5, kNow), 0u);
  EXPECT_TRUE(detector.take_loss(1, kNow));
  EXPECT_EQ(detector.cut_at(5, kNow + kCutOffAfter), 0u);
  EXPECT_EQ(detector.cut_at(5, kNow + kCutOffAfter + milliseconds(1)), 1u);
  EXPECT_EQ(detector.cut_at(2, kNow + seconds(60)), 0u);
}

TEST(FailureDetector, TheWayToTheTopIsCutBySilenceForAsLong) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_silence(silence_of(3, 3000), kNow));
  EXPECT_EQ(detector.cut_at(5, kNow + milliseconds(1499)), 0u);
  EXPECT_EQ(detector.cut_at(5, kNow + milliseconds(1500)), 3u);
  EXPECT_TRUE(detector.take_heard(3));
  EXPECT_EQ(detector.cut_at(5, kNow + seconds(60)), 0u);
}

TEST(FailureDetector, ANewTopGivesTheOthersTimeToCome) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_loss(1, kNow));
  detector.become_top(kNow + seconds(60));
  EXPECT_EQ(detector.cut_at(5, kNow + seconds(60) + kCutOffAfter), 0u);
  EXPECT_EQ(detector.cut_at(5, kNow + seconds(61) + kCutOffAfter), 1u);
}

TEST(FailureDetector, AWayThatLeadsElsewhereIsNotCut) {
  Detector detector(0);
  detector.tree->remove(1);  // it lost the connection, and may be a top itself
  EXPECT_EQ(detector.cut_at(5, kNow), kNobody);
  EXPECT_EQ(detector.cut_at(1, kNow), kNobody);
  detector.tree->move(3, 5);  // a circle
  EXPECT_EQ(detector.cut_at(5, kNow), kNobody);
}

TEST(FailureDetector, TheTopTellsOfThoseBehindALoss) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_loss(1, kNow));
  EXPECT_TRUE(detector.cut_off(kNow).empty());
  const auto late = kNow + seconds(5);
  const auto notices = detector.cut_off(late);
  ASSERT_EQ(notices.size(), 3u);  // 3, 4, 5
  EXPECT_EQ(notices[0].type, NoticeType::kLost);
  EXPECT_EQ(notices[0].process, 3u);
  EXPECT_EQ(notices[0].text, "cut off behind process 1 (pid 1001 on a), which was lost; whether it lives is not known");
  EXPECT_EQ(notices[2].process, 5u);
  detector.tree->move(3, 2);  // it has come back, with 5
  detector.tree->rank_left(4);
  EXPECT_TRUE(detector.cut_off(late).empty());
}

TEST(FailureDetector, ThoseBehindASilenceAreSilentAndNotLost) {
  Detector detector(0);
  EXPECT_TRUE(detector.take_silence(silence_of(3, 4500), kNow));
  const auto notices = detector.cut_off(kNow);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].type, NoticeType::kSilent);
  EXPECT_EQ(notices[0].process, 5u);
  EXPECT_EQ(notices[0].text,
            "cut off behind process 3 (pid 1003 on a), which does not answer; whether it lives is not known");
}

TEST(FailureDetector, OnlyTheTopTellsOfThoseBehind) {
  Detector detector(1);
  EXPECT_TRUE(detector.take_loss(3, kNow));
  EXPECT_TRUE(detector.cut_off(kNow + seconds(60)).empty());
}

// Below processes that never held a rank

class BelowRelays : public ::testing::Test {
 protected:
  // 1 holds no rank; 3 and 4 hang from it.
  BelowRelays() : detector_(0, kParents, {0, 2, 3, 4, 5}) {
    detector_.tree->remove(1);
    detector_.relay_is_gone(1, kNow);
  }
  Detector detector_;
};

TEST_F(BelowRelays, ThoseThatDoNotComeBackAreProbedAfterAWhile) {
  EXPECT_TRUE(detector_.missing(kNow).empty());
  EXPECT_TRUE(detector_.missing(kNow + kProbeAfter - milliseconds(1)).empty());
  EXPECT_EQ(detector_.missing(kNow + kProbeAfter), (Numbers{3, 4}));
  const auto lost = detector_.probed(3, Answer::kRefuses, kNow + kProbeAfter);
  EXPECT_EQ(lost.next, Next::kTellLost);
  EXPECT_EQ(lost.text,
            "nothing listens at its addresses any more: it has ended, has closed its sockets, or something refuses "
            "connections in its place");
  EXPECT_EQ(detector_.probed(5, Answer::kRefuses, kNow + kProbeAfter).next, Next::kNothing);  // not missing
}

TEST_F(BelowRelays, OneThatCameBackOrLeftIsNotMissing) {
  EXPECT_TRUE(detector_.missing(kNow).empty());
  detector_.tree->move(3, 0);
  detector_.tree->add_child(3);
  detector_.tree->rank_left(3);  // of process 4
  EXPECT_TRUE(detector_.missing(kNow + seconds(9)).empty());
  EXPECT_EQ(detector_.probed(3, Answer::kRefuses, kNow + seconds(9)).next, Next::kNothing);
}

TEST_F(BelowRelays, AProbeMeansNothingOnceThisProcessIsNoTop) {
  EXPECT_TRUE(detector_.missing(kNow).empty());
  detector_.tree->attach_to(2);
  EXPECT_EQ(detector_.probed(3, Answer::kRefuses, kNow + seconds(9)).next, Next::kNothing);
  detector_.tree->become_top();
  detector_.become_top(kNow + seconds(9));
  EXPECT_EQ(detector_.probed(3, Answer::kRefuses, kNow + seconds(9)).next, Next::kNothing);
  EXPECT_TRUE(detector_.missing(kNow + seconds(9)).empty());  // their time begins anew
}

TEST_F(BelowRelays, OneThatHeldARankIsNoRelay) {
  Detector detector(0);
  detector.tree->rank_left(1);
  detector.tree->remove(1);
  detector.relay_is_gone(1, kNow);
  EXPECT_TRUE(detector.missing(kNow).empty());
  EXPECT_TRUE(detector.missing(kNow + seconds(9)).empty());
}

TEST(FailureDetector, ASilentProcessBelowARelayThatIsGoneIsLostOnceNothingListens) {
  Detector detector(2, {kNobody, 0, kNobody, 2}, {1, 2, 3});  // process 0 holds no rank
  detector.relay_is_gone(0, kNow);
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  (void)detector.missing(kNow);
  EXPECT_EQ(detector.missing(kNow + kProbeAfter), (Numbers{1}));
  EXPECT_EQ(detector.probed(1, Answer::kRefuses, kNow + kProbeAfter).next, Next::kTellLost);
}

TEST(FailureDetector, AChildIsNotCutOffWhateverIsToldOfItsParent) {
  Detector top(0, {kNobody, 0, 1});
  top.tree->add_child(2);
  EXPECT_TRUE(top.take_loss(1, kNow));
  EXPECT_TRUE(top.cut_off(kNow + seconds(60)).empty());
}

TEST(FailureDetector, ThoseBelowASilentRelayAreMissingOnceItIsNoChild) {
  Detector detector(0, kParents, {0, 2, 3, 4, 5});
  EXPECT_TRUE(detector.take_silence(silence_of(1), kNow));
  EXPECT_TRUE(detector.missing(kNow).empty());
  EXPECT_TRUE(detector.missing(kNow + seconds(1)).empty());  // the way is not cut
  detector.tree->remove(1);
  EXPECT_TRUE(detector.missing(kNow + seconds(1)).empty());  // their time begins now
  EXPECT_EQ(detector.missing(kNow + seconds(1) + kProbeAfter), (Numbers{3, 4}));
}

// The others have gone on under a top of their own while this process was stopped, gave up and ended.
TEST(FailureDetector, ThoseThatHangFromAnotherTopAreProbedWhereTheyDoNotCome) {
  Detector detector(0, {kNobody, kNobody, 1, 0});
  EXPECT_TRUE(detector.missing(kNow).empty());
  EXPECT_TRUE(detector.missing(kNow + kOrphansTimeout - milliseconds(1)).empty());
  EXPECT_EQ(detector.missing(kNow + kOrphansTimeout), (Numbers{1, 2}));
  EXPECT_EQ(detector.probed(1, Answer::kNone, kNow + kOrphansTimeout).next, Next::kTellSilent);
  EXPECT_EQ(detector.probed(1, Answer::kFailed, kNow + kOrphansTimeout).next, Next::kNothing);
  EXPECT_EQ(detector.probed(1, Answer::kRefuses, kNow + kOrphansTimeout).next, Next::kTellLost);
  const auto left = detector.probed(1, Answer::kHasNoJob, kNow + kOrphansTimeout);
  EXPECT_EQ(left.next, Next::kTellLost) << "it lives, and has another communicator";
  EXPECT_NE(left.text.find("it has left this one, or has ended"), std::string::npos) << left.text;
  detector.tree->move(1, 0);
  detector.tree->add_child(1);
  EXPECT_TRUE(detector.missing(kNow + seconds(60)).empty());
}

TEST(FailureDetector, OneOfAnotherPartThatListensGivesAllOfItTimeToCome) {
  Detector detector(0, {kNobody, kNobody, 1});
  EXPECT_TRUE(detector.missing(kNow).empty());
  const auto probed = kNow + kOrphansTimeout;
  EXPECT_EQ(detector.missing(probed), (Numbers{1, 2}));
  EXPECT_EQ(detector.probed(1, Answer::kListens, probed).next, Next::kTellHeard);
  EXPECT_TRUE(detector.missing(probed + kOrphansTimeout - milliseconds(1)).empty());
  EXPECT_EQ(detector.missing(probed + kOrphansTimeout), (Numbers{1, 2}));
}

TEST(FailureDetector, AFormerChildMayHangElsewhereUnlessItsConnectionBrokeOrItsParentIsLost) {
  Detector detector(0);
  detector.tree->remove(1);  // it has said that it goes
  EXPECT_TRUE(detector.missing(kNow).empty());
  EXPECT_EQ(detector.missing(kNow + kOrphansTimeout), (Numbers{1, 3, 4, 5}));
  EXPECT_TRUE(detector.take_loss(3, kNow));
  EXPECT_EQ(detector.missing(kNow + kOrphansTimeout), (Numbers{1, 4}));
  detector.breaks(1, 0);
  EXPECT_TRUE(detector.missing(kNow + kOrphansTimeout).empty()) << "each of the others is below it";
}

TEST(FailureDetector, OfManyThatAreMissingSomeAreProbedAtATime) {
  constexpr uint32_t kProcesses = 2 * kMaxMissing + 3;
  Detector detector(0, Numbers(kProcesses, kNobody));
  EXPECT_TRUE(detector.missing(kNow).empty());
  std::set<uint32_t> probed;
  for (int turn = 0; turn < 3; ++turn) {
    const Numbers some = detector.missing(kNow + kOrphansTimeout);
    EXPECT_EQ(some.size(), kMaxMissing);
    probed.insert(some.begin(), some.end());
  }
  EXPECT_EQ(probed.size(), kProcesses - 1);
}

TEST(FailureDetector, ThoseBelowAnotherTopThatLeftMayHaveLeftTooAndThoseOfTheLowestTopAreItsOwn) {
  Detector lowest(0, {kNobody, kNobody, 1}), higher(1, {kNobody, kNobody, 0});
  lowest.tree->rank_left(1);
  for (Detector* detector : {&lowest, &higher})
    for (int second : {0, 60}) EXPECT_TRUE(detector->missing(kNow + seconds(second)).empty());
}

// The end

TEST(FailureDetector, AParentIsOverdueBetweenAHeartbeatAndSilence) {
  EXPECT_FALSE(FailureDetector::is_overdue(milliseconds(1500)));  // the tick that sends it may be late
  EXPECT_TRUE(FailureDetector::is_overdue(kOverdueAfter));
  EXPECT_TRUE(FailureDetector::is_overdue(kSilence));
  EXPECT_FALSE(FailureDetector::is_overdue(2 * kSilence)) << "nothing came of the silence";
}

TEST(FailureDetector, AllIsOverAWhileAfterTheLastHasLeftOrIsLost) {
  Detector detector(0, {kNobody, 0, 1});
  detector.tree->rank_left(2);
  EXPECT_FALSE(detector.is_over(kNow));
  EXPECT_TRUE(detector.take_loss(1, kNow));
  EXPECT_FALSE(detector.is_over(kNow + seconds(9)));
  EXPECT_FALSE(detector.is_over(kNow + seconds(9) + kOverAfter - milliseconds(1)));
  EXPECT_TRUE(detector.is_over(kNow + seconds(9) + kOverAfter));
}

TEST(FailureDetector, AProcessAloneInTheTreeIsIdle) {
  EXPECT_TRUE(Detector(0, {kNobody}).is_idle(true, kNow));
  Detector detector(0, {kNobody, kNobody});
  EXPECT_FALSE(detector.is_idle(true, kNow));  // the other part may have ended
  EXPECT_TRUE(detector.take_loss(1, kNow));
  EXPECT_TRUE(detector.is_idle(true, kNow));
  detector.breaks(1, 0);
  EXPECT_FALSE(detector.is_idle(false, kNow));
  Detector second(1, {kNobody, kNobody});
  EXPECT_FALSE(second.is_idle(true, kNow));  // it looks for the other part
  EXPECT_TRUE(second.take_silence(silence_of(0), kNow));
  EXPECT_FALSE(second.is_idle(true, kNow));  // also where that does not answer
  EXPECT_TRUE(second.is_idle(false, kNow));
  Detector above(0, {kNobody, 0, 1}, {0, 2});  // 2 hangs from 1, which holds no rank
  above.tree->remove(1);
  EXPECT_TRUE(above.is_idle(true, kNow));
  above.relay_is_gone(1, kNow);
  EXPECT_FALSE(above.is_idle(true, kNow));
  EXPECT_FALSE(Detector(5).is_idle(true, kNow));
  EXPECT_FALSE(Detector(0).is_idle(false, kNow));
}

}  // namespace
}  // namespace treering
