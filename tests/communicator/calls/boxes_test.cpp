// SPDX-License-Identifier: Apache-2.0
// Plans of box exchanges and rows of boxes, at their limits.
#include "communicator/calls/boxes.h"

#include <gtest/gtest.h>

#include <climits>
#include <map>

namespace treering {
namespace {

trBox_t line(int64_t lo, int64_t hi) {
  trBox_t box{};
  box.lo[0] = lo;
  box.hi[0] = hi;
  return box;
}
trBox_t plane(int64_t lo0, int64_t hi0, int64_t lo1, int64_t hi1) {
  trBox_t box = line(lo0, hi0);
  box.lo[1] = lo1;
  box.hi[1] = hi1;
  return box;
}

TEST(Volume, CountsElementsUpToWhatSizeTHolds) {
  size_t elements = 99;
  EXPECT_TRUE(volume_of(plane(-2, 3, 7, 11), 2, &elements));
  EXPECT_EQ(elements, 20u);
  EXPECT_TRUE(volume_of(plane(3, 3, 0, INT64_MAX), 2, &elements));
  EXPECT_EQ(elements, 0u);
  EXPECT_TRUE(volume_of(line(INT64_MIN, INT64_MAX), 1, &elements));
  EXPECT_EQ(elements, SIZE_MAX) << "more than an int64_t holds";
  EXPECT_FALSE(volume_of(plane(INT64_MIN, INT64_MAX, 0, 2), 2, &elements));
  EXPECT_TRUE(volume_of(plane(INT64_MIN, INT64_MAX, 5, 5), 2, &elements))
      << "an empty box has 0 elements, however wide";
  EXPECT_EQ(elements, 0u);
}

TEST(Empty, LooksAtTheDimensionsInUseAlone) {
  EXPECT_FALSE(is_empty(line(0, 1), 1));
  EXPECT_TRUE(is_empty(line(0, 1), 2)) << "the second one is [0, 0)";
  EXPECT_TRUE(is_empty(line(1, 1), 1));
  EXPECT_EQ(box_text(plane(-1, 2, 3, 4), 2), "[-1, 2) x [3, 4)");
}

TEST(Rows, AreJoinedWhereTheBoxIsAsWideAsTheArray) {
  const trBox_t outer = plane(10, 14, -3, 3);  // 4 x 6
  const auto expect_rows = [&](const trBox_t& box, const std::vector<Row>& expected) {
    const std::vector<Row> rows = rows_of(box, outer, 2);
    ASSERT_EQ(rows.size(), expected.size());
    EXPECT_EQ(row_count(box, outer, 2), expected.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].offset, expected[i].offset) << "row " << i;
      EXPECT_EQ(rows[i].length, expected[i].length) << "row " << i;
    }
  };
  expect_rows(outer, {{0, 24}});
  expect_rows(plane(11, 13, -3, 3), {{6, 12}});
  expect_rows(plane(11, 13, -2, 3), {{7, 5}, {13, 5}});
  expect_rows(plane(13, 14, 2, 3), {{23, 1}});
}

TEST(Rows, CountTheOuterDimensionsOfThree) {
  trBox_t outer{}, box{};
  for (int d = 0; d < 3; ++d) outer.hi[d] = 4;
  box = outer;
  box.hi[0] = 2;
  box.lo[1] = 1;  // 2 x 3 x 4 of 4 x 4 x 4: the last dimension is whole, so rows are 3 x 4 long
  EXPECT_EQ(row_count(box, outer, 3), 2u);
  const std::vector<Row> rows = rows_of(box, outer, 3);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].offset, 4u);
  EXPECT_EQ(rows[0].length, 12u);
  EXPECT_EQ(rows[1].offset, 20u);
}

TEST(Plan, TakesFromTheDestinationItselfAndThenFromTheLowestRank) {
  // Each element of [0, 8) is held by two or three ranks.
  std::vector<RankBoxes> ranks(3);
  ranks[0].held = {line(0, 6)};
  ranks[1].held = {line(2, 8)};
  ranks[2].held = {line(3, 4)};
  ranks[2].needed = {line(0, 8)};
  std::vector<BoxTransfer> transfers;
  ASSERT_TRUE(plan_transfers(ranks, 1, &transfers).ok());
  std::map<int64_t, uint32_t> source_of;
  for (const BoxTransfer& transfer : transfers) {
    EXPECT_EQ(transfer.destination, 2u);
    EXPECT_EQ(transfer.held, 0u);
    for (int64_t i = transfer.box.lo[0]; i < transfer.box.hi[0]; ++i)
      EXPECT_TRUE(source_of.emplace(i, transfer.source).second) << "element " << i << " comes twice";
  }
  const std::map<int64_t, uint32_t> expected = {{0, 0}, {1, 0}, {2, 0}, {3, 2}, {4, 0}, {5, 0}, {6, 1}, {7, 1}};
  EXPECT_EQ(source_of, expected);
}

// A hole in the middle of a box leaves a frame of four parts.
TEST(Plan, CoversABoxWithAHoleExactlyOnce) {
  std::vector<RankBoxes> ranks(2);
  ranks[0].held = {plane(2, 4, 2, 5)};
  ranks[1].held = {plane(0, 7, 0, 7)};
  ranks[0].needed = {plane(1, 6, 0, 7)};
  std::vector<BoxTransfer> transfers;
  ASSERT_TRUE(plan_transfers(ranks, 2, &transfers).ok());
  std::map<std::pair<int64_t, int64_t>, uint32_t> source_of;
  for (const BoxTransfer& transfer : transfers)
    for (int64_t i = transfer.box.lo[0]; i < transfer.box.hi[0]; ++i)
      for (int64_t j = transfer.box.lo[1]; j < transfer.box.hi[1]; ++j)
        EXPECT_TRUE((source_of.emplace(std::pair(i, j), transfer.source).second)) << i << " " << j;
  EXPECT_EQ(source_of.size(), 35u);
  for (const auto& [at, source] : source_of) {
    const bool is_own = at.first >= 2 && at.first < 4 && at.second >= 2 && at.second < 5;
    EXPECT_EQ(source, is_own ? 0u : 1u) << at.first << " " << at.second;
  }
}

TEST(Plan, NamesAnElementThatNobodyHolds) {
  std::vector<RankBoxes> ranks(2);
  ranks[0].held = {line(0, 4)};
  ranks[1].held = {line(5, 9)};
  ranks[1].needed = {line(2, 2), line(2, 7)};  // an empty box needs nothing
  std::vector<BoxTransfer> transfers;
  const Status status = plan_transfers(ranks, 1, &transfers);
  EXPECT_EQ(status.code(), trInvalidUsage);
  EXPECT_EQ(status.message(), "trExchangeCreate: no rank holds [4, 5) of the box [2, 7) that rank 1 needs");
}

TEST(Plan, ForgetsAnEarlierPlan) {
  std::vector<BoxTransfer> transfers(5);
  ASSERT_TRUE(plan_transfers({}, 1, &transfers).ok());
  EXPECT_TRUE(transfers.empty());
}

}  // namespace
}  // namespace treering
