// SPDX-License-Identifier: Apache-2.0
// Who is where in the tree, which way a message goes, and who has left.
#include "bootstrap/job/process_tree.h"

#include <gtest/gtest.h>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

using testing::process_table_of;
using testing::tree_at;
using Numbers = std::vector<uint32_t>;

// 0 -- 1, 2;  1 -- 3, 4;  3 -- 5
const Numbers kParents = {kNobody, 0, 0, 1, 1, 3};

TEST(ProcessTree, MessagesGoDownToDescendantsAndElseUp) {
  const ProcessTree tree = tree_at(1, kParents);
  EXPECT_EQ(tree.next_hop(3, 1), 3u);
  EXPECT_EQ(tree.next_hop(5, 1), 3u);
  EXPECT_EQ(tree.next_hop(4, 0), 4u);
  EXPECT_EQ(tree.next_hop(2, 3), 0u);
  EXPECT_EQ(tree.next_hop(0, 1), 0u);
}

TEST(ProcessTree, AMessageDoesNotGoBackToWhereItCameFrom) {
  const ProcessTree tree = tree_at(1, kParents);
  EXPECT_EQ(tree.next_hop(5, 3), 0u);       // the child does not have it below itself: others may know better
  EXPECT_EQ(tree.next_hop(2, 0), kNobody);  // the parent thinks that 2 is below this one
  EXPECT_EQ(tree_at(0, kParents).next_hop(5, 1), kNobody);
}

TEST(ProcessTree, MessagesFollowAProcessThatHasMoved) {
  ProcessTree tree = tree_at(0, kParents);
  EXPECT_EQ(tree.next_hop(5, 0), 1u);
  tree.move(5, 2);
  EXPECT_EQ(tree.next_hop(5, 0), 2u);
  tree.move(5, kNobody);  // a top of its own
  EXPECT_EQ(tree.next_hop(5, 0), kNobody);
}

TEST(ProcessTree, ACircleOfParentsEndsTheWay) {
  ProcessTree tree = tree_at(2, kParents);
  tree.move(1, 5);
  EXPECT_EQ(tree.next_hop(5, 2), 0u);
}

TEST(ProcessTree, AnUnknownProcessIsForTheParent) {
  EXPECT_EQ(tree_at(1, kParents).next_hop(99, 3), 0u);
  EXPECT_EQ(tree_at(0, kParents).next_hop(99, 1), kNobody);
  EXPECT_EQ(tree_at(1, kParents).parent_of(99), kNobody);
  ProcessTree tree = tree_at(1, kParents);
  tree.move(99, 0);
  EXPECT_EQ(tree.parent_of(99), kNobody);
}

TEST(ProcessTree, TheNeighboursAreTheParentAndThenTheChildren) {
  ProcessTree tree = tree_at(3, kParents);
  tree.add_child(0);
  EXPECT_EQ(tree.neighbours(), (Numbers{1, 0, 5}));
  EXPECT_EQ(tree_at(0, kParents).neighbours(), (Numbers{1, 2}));
  EXPECT_TRUE(ProcessTree().neighbours().empty());
}

TEST(ProcessTree, AProcessThatLosesItsParentIsNoTopYet) {
  ProcessTree tree = tree_at(1, kParents);
  tree.remove(0);
  EXPECT_FALSE(tree.has_parent());
  EXPECT_FALSE(tree.is_parent(0));
  EXPECT_FALSE(tree.is_parent(kNobody));
  EXPECT_FALSE(tree.is_top());
  tree.become_top();
  EXPECT_TRUE(tree.is_top());
  EXPECT_EQ(tree.neighbours(), (Numbers{3, 4}));
}

TEST(ProcessTree, ATopThatAttachesToItsChildHasItAsParentAlone) {
  ProcessTree tree = tree_at(0, kParents);
  tree.attach_to(2);
  EXPECT_FALSE(tree.is_top());
  EXPECT_TRUE(tree.is_parent(2));
  EXPECT_FALSE(tree.is_child(2));
  EXPECT_EQ(tree.neighbours(), (Numbers{2, 1}));
}

TEST(ProcessTree, AProcessHasLeftWithTheLastOfItsRanks) {
  ProcessTree tree = tree_at(0, kParents, {0, 1, 1, 2, 3, 4});  // process 5 holds none
  EXPECT_EQ(tree.ranks_of(1), (Numbers{1, 2}));
  tree.rank_left(1);
  EXPECT_FALSE(tree.has_left(1));
  EXPECT_EQ(tree.present_ranks(1), (Numbers{2}));
  tree.rank_left(1);  // it is told again, by another way
  EXPECT_FALSE(tree.has_left(1));
  tree.rank_left(2);
  EXPECT_TRUE(tree.has_left(1));
  EXPECT_TRUE(tree.holds_ranks(1));
  EXPECT_EQ(tree.ranks_of(1), (Numbers{1, 2}));
  EXPECT_TRUE(tree.present_ranks(1).empty());
}

TEST(ProcessTree, AProcessWithoutRanksCountsAsOneThatLeft) {
  const ProcessTree tree = tree_at(0, kParents, {0, 1, 2, 3, 4});
  EXPECT_TRUE(tree.has_left(5));
  EXPECT_FALSE(tree.holds_ranks(5));
  EXPECT_TRUE(tree.has_left(99));
  EXPECT_FALSE(tree.holds_ranks(99));
}

TEST(ProcessTree, RanksMayLeaveBeforeAllHaveMet) {
  ProcessTree tree;
  tree.set_own(0);
  tree.rank_left(2);
  EXPECT_FALSE(tree.has_met());
  EXPECT_FALSE(tree.has_left(2));
  EXPECT_TRUE(tree.ranks_of(2).empty());
  tree.meet(process_table_of(kParents));
  EXPECT_TRUE(tree.has_left(2));
  EXPECT_FALSE(tree.has_left(1));
}

TEST(ProcessTree, ProcessesAreDescribedByTheirRanks) {
  ProcessTree tree;
  EXPECT_EQ(tree.describe(3), "process 3");
  tree.meet(process_table_of(kParents, {0, 1, 1, 2, 3}));
  EXPECT_EQ(tree.describe(3), "rank 4 (pid 1003 on a)");
  EXPECT_EQ(tree.describe(1), "ranks 1, 2 (pid 1001 on a)");
  EXPECT_EQ(tree.describe(4), "process 4 (pid 1004 on a)");
  tree.rank_left(4);
  EXPECT_EQ(tree.describe(3), "rank 4 (pid 1003 on a)");
}

TEST(ProcessTree, TheProcessTableIsPassedOnWithAndWithoutASegment) {
  ProcessTree tree = tree_at(0, kParents);
  for (bool has_segment : {true, false}) {
    ProcessTableMessage table;
    ASSERT_TRUE(decode(tree.process_table_bytes(has_segment), &table));
    EXPECT_EQ(table.has_segment, has_segment);
    EXPECT_EQ(table.places.size(), kParents.size());
  }
}

TEST(ProcessTree, OthersAreHeardThroughTheParent) {
  EXPECT_EQ(tree_at(0, kParents).heard_through(), "");
  ProcessTree tree = tree_at(3, kParents);
  EXPECT_EQ(tree.heard_through(),
            "rank 1 (pid 1001 on a), through which rank 3 (pid 1003 on a) hears of the others, has not passed it on");
  tree.remove(1);
  EXPECT_EQ(tree.heard_through(), "no other process answers rank 3 (pid 1003 on a)");
}

}  // namespace
}  // namespace treering
