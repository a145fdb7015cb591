// SPDX-License-Identifier: Apache-2.0
// Which processes are asked to be the parent, for how long, and what becomes of a process that finds none.
#include "bootstrap/job/parent_search.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

using testing::kNow;
using testing::process_table_of;
using testing::tree_at;
using Numbers = std::vector<uint32_t>;
using Outcome = ParentSearch::Outcome;
using Follow = ParentSearch::Follow;
using std::chrono::milliseconds;
using std::chrono::seconds;

// 0 -- 1, 2;  1 -- 3, 4;  3 -- 5
const Numbers kParents = {kNobody, 0, 0, 1, 1, 3};

struct Facts {
  explicit Facts(ProcessTree its_tree) : tree(std::move(its_tree)), detector(tree) {}

  ProcessTree tree;
  FailureDetector detector;
};

struct Search : Facts, ParentSearch {
  explicit Search(uint32_t own, const Numbers& parents = kParents) : Search(tree_at(own, parents)) {
    std::vector<Place> above;
    for (uint32_t next = parents[own]; next != kNobody; next = parents[next]) above.push_back(tree.place(next));
    set_ancestors(above);
  }
  explicit Search(ProcessTree its_tree) : Facts(std::move(its_tree)), ParentSearch(Facts::tree, Facts::detector) {}

  void lose_parent() { tree.remove(tree.parent()); }
  Numbers rest() {
    Numbers all;
    while (const auto place = next()) all.push_back(place->process);
    return all;
  }
  Numbers candidates_at(Clock::time_point now) {
    begin(now);
    return rest();
  }
};

// Whom it asks

TEST(ParentSearch, AncestorsComeFirstAndThenLowerNumbers) {
  Search search(5);
  search.lose_parent();
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{3, 1, 0, 2, 4}));
}

TEST(ParentSearch, NoneOfAHigherNumberIsAskedThoughItIsAlone) {
  Search search(1);
  search.lose_parent();
  EXPECT_TRUE(search.detector.take_loss(0, kNow));
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{}));
  Search top(0);
  EXPECT_EQ(top.candidates_at(kNow), (Numbers{}));
}

TEST(ParentSearch, NeitherTheLostNorTheSilentNorChildrenAreAsked) {
  Search search(5);
  search.lose_parent();
  EXPECT_TRUE(search.detector.take_loss(3, kNow));
  EXPECT_TRUE(search.detector.take_silence({.type = NoticeType::kSilent, .process = 1}, kNow));
  search.tree.add_child(4);
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{0, 2}));
}

TEST(ParentSearch, AParentThatDoesNotAnswerIsNotAskedAgain) {
  Search search(5);
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{1, 0, 2, 4}));
}

TEST(ParentSearch, ThoseThatHaveLeftComeLast) {
  Search search(5);
  search.lose_parent();
  search.tree.rank_left(3);
  search.tree.rank_left(0);
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{1, 2, 4, 3, 0}));
}

TEST(ParentSearch, OfAHostAndInAllOnlySomeAreAsked) {
  const uint32_t own = 100;
  ProcessTableMessage table = process_table_of(Numbers(own + 1, kNobody));
  for (Place& place : table.places) place.host = place.process / 10;
  ProcessTree tree;
  tree.set_own(own);
  tree.meet(table);
  Search search(std::move(tree));
  const Numbers asked = search.candidates_at(kNow);
  ASSERT_EQ(asked.size(), kMaxParents);
  EXPECT_EQ(asked[kMaxOfHost - 1], 5u);
  EXPECT_EQ(asked[kMaxOfHost], 10u);
}

TEST(ParentSearch, WhileTheRanksMeetTheAncestorsAreAsked) {
  ProcessTree tree;
  tree.set_own(5);
  Search search(std::move(tree));
  search.set_ancestors({process_table_of(kParents).places[3], process_table_of(kParents).places[0]});
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{3, 0}));
}

TEST(ParentSearch, WhileTheRanksMeetASilentParentIsAskedAgain) {
  ProcessTree tree;
  tree.set_own(5);
  tree.attach_to(3);
  Search search(std::move(tree));
  search.set_ancestors({process_table_of(kParents).places[3], process_table_of(kParents).places[0]});
  EXPECT_EQ(search.candidates_at(kNow), (Numbers{3, 0}));
}

TEST(ParentSearch, ATopTriesOneAlone) {
  Search search(2, {kNobody, kNobody, kNobody});
  search.begin_with(search.tree.place(1));
  EXPECT_EQ(search.rest(), (Numbers{1}));
}

// For how long

TEST(ParentSearch, EachCandidateHasItsTimeAndTheSearchHasOneToo) {
  Search search(5);
  const Place place = search.tree.place(1);
  EXPECT_EQ(search.timeout_for(place, true, kNow), kAttachTimeout);
  EXPECT_EQ(search.timeout_for(place, false, kNow), kReattachTimeout);  // a top's
  search.begin(kNow);
  EXPECT_EQ(search.timeout_for(place, false, kNow), kReattachTimeout);
  EXPECT_EQ(search.timeout_for(place, false, kNow + kSearchTimeout - milliseconds(700)), milliseconds(700));
  EXPECT_EQ(search.timeout_for(place, false, kNow + kSearchTimeout), kMuteHostTimeout);
  EXPECT_EQ(search.timeout_for(place, false, kNow + seconds(60)), kMuteHostTimeout);
}

TEST(ParentSearch, AHostOnWhichOneDidNotAnswerGetsLess) {
  ProcessTableMessage table = process_table_of(kParents);
  table.places[2].host = 1;
  ProcessTree tree;
  tree.set_own(5);
  tree.meet(table);
  Search search(std::move(tree));
  search.begin(kNow);
  search.no_answer(search.tree.place(3));
  EXPECT_EQ(search.timeout_for(search.tree.place(1), false, kNow), kMuteHostTimeout);
  EXPECT_EQ(search.timeout_for(search.tree.place(2), false, kNow), kReattachTimeout);
  search.begin(kNow);  // all may answer again
  EXPECT_EQ(search.timeout_for(search.tree.place(1), false, kNow), kReattachTimeout);
  EXPECT_TRUE(search.unresponsive().empty());
}

TEST(ParentSearch, TheTimeOfASearchCountsUntilItEnds) {
  Search search(5);
  search.begin(kNow);
  search.begin(kNow + kSearchTimeout);
  EXPECT_EQ(search.timeout_for(search.tree.place(1), false, kNow + kSearchTimeout), kMuteHostTimeout);
  search.end();
  EXPECT_EQ(search.timeout_for(search.tree.place(1), false, kNow + seconds(60)), kReattachTimeout);
  search.begin(kNow + kSearchTimeout);
  EXPECT_EQ(search.timeout_for(search.tree.place(1), false, kNow + kSearchTimeout), kReattachTimeout);
}

// What is said

TEST(ParentSearch, TheReasonsNameThoseThatFailedAndNotThoseThatLeft) {
  Search search(5);
  search.tree.rank_left(3);
  search.begin(kNow);
  EXPECT_EQ(search.failed(search.tree.place(1), "refused", kNow), "process 1 (pid 1001 on a): refused");
  EXPECT_EQ(search.failed(search.tree.place(3), "refused", kNow), "");
  EXPECT_EQ(search.failed(search.tree.place(0), "no answer", kNow), "; process 0 (pid 1000 on a): no answer");
  EXPECT_EQ(search.reasons(), "process 1 (pid 1001 on a): refused; process 0 (pid 1000 on a): no answer");
  search.begin(kNow);
  EXPECT_EQ(search.reasons(), "");
  (void)search.failed(search.tree.place(1), "refused", kNow);
  search.begin_with(search.tree.place(0));
  EXPECT_EQ(search.reasons(), "");
}

// What becomes of it

TEST(ParentSearch, AnotherMachineMayRefuseForAMomentWhileTheRanksMeet) {
  Search search(5);
  Place own;
  own.network = 1;  // the others' is 0
  search.begin(kNow);
  EXPECT_FALSE(search.may_yet_answer(own, kNow));
  const auto later = kNow + seconds(3);  // the moment begins with the first refusal
  (void)search.failed(search.tree.place(0), "refused", later);
  search.begin(later);
  (void)search.failed(search.tree.place(0), "refused", later + milliseconds(100));
  EXPECT_TRUE(search.may_yet_answer(own, later + kReturnTimeout - milliseconds(1)));
  EXPECT_FALSE(search.may_yet_answer(own, later + kReturnTimeout));
  EXPECT_FALSE(search.may_yet_answer(Place{}, later)) << "of this machine";
}

TEST(ParentSearch, OneThatDidNotAnswerMayDoSoUntilTheDeadlineWhileTheRanksMeet) {
  Search search(5);
  search.begin(kNow);
  (void)search.failed(search.tree.place(3), "refused", kNow);
  EXPECT_FALSE(search.may_yet_answer(Place{}, kNow));
  search.no_answer(search.tree.place(0));
  EXPECT_TRUE(search.may_yet_answer(Place{}, kNow + seconds(200)));
}

TEST(ParentSearch, ARootThatDoesNotAnswerIsNamedAtTheDeadline) {
  ProcessTree tree;
  tree.set_own(5);
  Search search(std::move(tree));
  EXPECT_TRUE(search.deadline_passed(Place{}, kNow, kNow).ok()) << "no root was found yet";
  Place root;
  root.process = 0, root.pid = 4711, root.host_name = "there";
  search.set_ancestors({root});
  const Status status = search.deadline_passed(Place{}, kNow, kNow);
  EXPECT_EQ(status.code(), trTimeout);
  EXPECT_NE(status.message().find("made the unique id (pid 4711 on there) does not answer"), std::string::npos)
      << status.message();
}

TEST(ParentSearch, ACandidateIsTriedAgainBeforeTheOthers) {
  Search search(5);
  search.begin(kNow);
  search.try_again(search.next().value());
  EXPECT_EQ(search.rest(), (Numbers{1, 0, 2, 4}));
}

TEST(ParentSearch, AProcessThatFindsNoneBecomesTheTop) {
  Search search(5);
  search.lose_parent();
  search.begin(kNow);
  EXPECT_EQ(search.outcome(kNow), Outcome::kBecomeTop);
}

TEST(ParentSearch, ATopStaysTheTop) {
  Search search(2, {kNobody, kNobody, kNobody});
  search.begin_with(search.tree.place(1));
  EXPECT_EQ(search.outcome(kNow), Outcome::kStayTop);
}

TEST(ParentSearch, OneThatSeeksAParentItselfMayBeLate) {
  Search search(5);
  search.lose_parent();
  search.begin(kNow);
  EXPECT_TRUE(search.detector.take_loss(1, kNow));
  search.no_answer(search.tree.place(4));  // it hung from 1
  EXPECT_EQ(search.outcome(kNow), Outcome::kSearchAgain);
  EXPECT_EQ(search.outcome(kNow + kSearchTimeout - milliseconds(1)), Outcome::kSearchAgain);
  EXPECT_EQ(search.outcome(kNow + kSearchTimeout), Outcome::kBecomeTop);
  EXPECT_TRUE(search.detector.take_loss(4, kNow));
  EXPECT_EQ(search.outcome(kNow), Outcome::kBecomeTop);
}

TEST(ParentSearch, OneWhoseParentHasLeftMayBeLateToo) {
  Search search(5);
  search.lose_parent();
  search.begin(kNow);
  search.no_answer(search.tree.place(4));
  EXPECT_EQ(search.outcome(kNow), Outcome::kBecomeTop);  // its parent is there: it is stopped
  search.tree.rank_left(1);
  EXPECT_EQ(search.outcome(kNow), Outcome::kSearchAgain);
}

TEST(ParentSearch, AProcessWithASilentParentDoesNotWaitForOthers) {
  Search search(5);
  search.begin(kNow);
  EXPECT_TRUE(search.detector.take_loss(1, kNow));
  search.no_answer(search.tree.place(4));
  EXPECT_EQ(search.outcome(kNow), Outcome::kBecomeTop);
}

// Deserters

TEST(ParentSearch, ATopFollowsADeserterToItsNewTop) {
  Search search(2, {2, kNobody, kNobody, 2});
  EXPECT_EQ(search.follow({3, 1}, 3, false, kNow), Follow::kAttach);
  EXPECT_EQ(search.follow({3, 0}, 3, false, kNow), Follow::kNothing);  // 0 hangs from this one: a circle
}

TEST(ParentSearch, AProcessBelowTellsItsParentOfADeserterThatIsATop) {
  Search search(1);
  EXPECT_EQ(search.follow({4, 4}, 4, false, kNow), Follow::kTellParent);
  EXPECT_EQ(search.follow({4, 2}, 4, false, kNow), Follow::kNothing);  // it has only moved
  EXPECT_EQ(search.follow({4, 4}, 0, false, kNow), Follow::kNothing);  // the parent told
  EXPECT_EQ(search.follow({0, 0}, 3, false, kNow), Follow::kNothing);  // it is the parent
  search.lose_parent();
  EXPECT_EQ(search.follow({4, 4}, 4, false, kNow), Follow::kNothing);
}

TEST(ParentSearch, ABusyProcessRemembersDeserters) {
  Search search(1);
  EXPECT_EQ(search.follow({4, 4}, 3, true, kNow), Follow::kLater);
  EXPECT_EQ(search.follow({3, 3}, 3, true, kNow), Follow::kLater);
  const auto deserters = search.take_reparented();
  ASSERT_EQ(deserters.size(), 2u);
  EXPECT_EQ(deserters[0].first.process, 4u);
  EXPECT_EQ(deserters[0].second, 3u);
  EXPECT_EQ(deserters[1].first.process, 3u);
  EXPECT_TRUE(search.take_reparented().empty());
}

// The deadline while the ranks meet

TEST(ParentSearch, AParentThatDoesNotAnswerIsNamedWhenTheDeadlinePasses) {
  Search search(3);
  search.set_ancestors({search.tree.place(1), search.tree.place(0)});
  const Place& own = search.tree.place(3);
  EXPECT_TRUE(search.deadline_passed(own, kNow, kNow + kSilence - milliseconds(1)).ok());
  const Status mute = search.deadline_passed(own, kNow, kNow + kSilence);
  EXPECT_EQ(mute.code(), trTimeout);
  EXPECT_NE(mute.message().find("(pid 1001 on a), through which"), std::string::npos) << mute.message();
  search.lose_parent();
  EXPECT_FALSE(search.deadline_passed(own, {}, kNow).ok()) << "it is asked to be the parent, and has not answered";
  search.tree.attach_to(0);
  EXPECT_TRUE(search.deadline_passed(own, kNow, kNow + kSilence).ok()) << "another one is the parent";
}

TEST(ParentSearch, TheRendezvousRootIsNotAtFaultWhenTheDeadlinePasses) {
  Search below_the_root(1);
  EXPECT_TRUE(below_the_root.deadline_passed(below_the_root.tree.place(1), kNow, kNow + 2 * kSilence).ok());
  Search not_placed(1);
  not_placed.set_ancestors({});
  EXPECT_TRUE(not_placed.deadline_passed(not_placed.tree.place(1), kNow, kNow + 2 * kSilence).ok());
}

}  // namespace
}  // namespace treering
