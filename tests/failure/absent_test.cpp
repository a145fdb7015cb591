// SPDX-License-Identifier: Apache-2.0
// Whom the verdict names where an operation stands still because not all ranks have entered it. Rank 0 asks, in
// operation 10.
#include "failure/absent.h"

#include <gtest/gtest.h>

#include <map>

namespace treering {
namespace {

using Ranks = std::vector<uint32_t>;

constexpr uint64_t kOperation = 10;

RankProgress in_no_call(uint32_t rank) { return {rank, 9, 9, {}, false}; }
RankProgress in_transfer(uint32_t rank, uint32_t peer) { return {rank, 9, 9, peer, false}; }
RankProgress stopped(RankProgress rank) {
  rank.is_stopped = true;
  return rank;
}

TEST(Absent, WhoIsInNoCallIsNamed) {
  EXPECT_EQ(absent_ranks({in_no_call(1), {2, kOperation, 9, 1, false}}, kOperation), Ranks{1});
}

TEST(Absent, WhoWaitsInAnEarlierOperationIsNot) {
  EXPECT_EQ(absent_ranks({{1, 9, 8, 2, false}, in_no_call(2)}, kOperation), Ranks{2});
}

TEST(Absent, WhoWaitsInATransferForAStoppedRankIsNot) {
  // The stopped one was waiting, too.
  EXPECT_EQ(absent_ranks({in_transfer(1, 3), stopped(in_transfer(3, 1))}, kOperation), Ranks{3});
  EXPECT_EQ(absent_ranks({in_transfer(1, 2), in_transfer(2, 3), stopped(in_no_call(3))}, kOperation), Ranks{3});
}

TEST(Absent, WhoWaitsInATransferForOneInNoCallIsNot) {
  EXPECT_EQ(absent_ranks({in_transfer(1, 2), in_no_call(2)}, kOperation), Ranks{2});
}

TEST(Absent, TransfersWithTheOneThatAsksOrInACircleAreNamed) {
  EXPECT_EQ(absent_ranks({in_transfer(1, 0), in_no_call(2)}, kOperation), (Ranks{1, 2}));
  EXPECT_EQ(absent_ranks({in_transfer(1, 2), in_transfer(2, 1)}, kOperation), (Ranks{1, 2}));
  EXPECT_EQ(absent_ranks({stopped(in_transfer(1, 2)), in_no_call(2)}, kOperation), (Ranks{1, 2}));
}

// It would be named otherwise: the rank that holds it up is in the operation, and may wait for it.
TEST(Absent, WhoWaitsForOneThatHasEnteredIsNamed) {
  EXPECT_EQ(absent_ranks({in_transfer(1, 2), {2, kOperation, 9, {}, false}}, kOperation), Ranks{1});
}

// Along the waits

using Waits = std::map<uint32_t, uint32_t>;

Ranks way_of_rank_0(uint32_t first, const Waits& waits) {
  return follow_waits(0, first, [&waits](uint32_t rank) {
    const auto found = waits.find(rank);
    return found == waits.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(FollowWaits, ToTheOneThatWaitsForNoOther) {
  EXPECT_EQ(way_of_rank_0(3, {}), Ranks{3});
  EXPECT_EQ(way_of_rank_0(3, {{3, 1}, {1, 2}}), (Ranks{3, 1, 2}));
}

TEST(FollowWaits, EndsWhereRanksWaitForOneAnother) {
  EXPECT_EQ(way_of_rank_0(3, {{3, 0}, {0, 3}}), (Ranks{3, 0}));
  EXPECT_EQ(way_of_rank_0(3, {{3, 1}, {1, 2}, {2, 1}}), (Ranks{3, 1, 2, 1}));
  EXPECT_EQ(way_of_rank_0(3, {{3, 3}}), (Ranks{3, 3}));
}

}  // namespace
}  // namespace treering
