// SPDX-License-Identifier: Apache-2.0
// Which sends and receives go as eager messages, and how the others become lanes.
#include "communicator/calls/lanes.h"

#include <gtest/gtest.h>

#include <array>

namespace treering {
namespace {

constexpr uint32_t kRank = 1, kRanks = 4;
constexpr size_t kMaxEager = 288;

class Lanes : public ::testing::Test {
 protected:
  Transfer sends(uint32_t peer, size_t bytes) { return {peer, true, View(memory_.data()), bytes}; }
  Transfer receives(uint32_t peer, size_t bytes) { return {peer, false, View(memory_.data() + 500), bytes}; }
  static bool eager(const std::vector<Transfer>& transfers, size_t most = kMaxEager) {
    return are_eager(transfers, most, kRank, kRanks);
  }
  Status make(const std::vector<Transfer>& transfers) {
    return make_lanes(transfers, "trGroupEnd", kRank, &schedules_, &lanes_);
  }

  std::array<std::byte, 1000> memory_{};
  ScheduleCache schedules_{flat_plan(kRanks), kRank, Machine(), "", 0};
  std::shared_ptr<LaneSet> lanes_;
};

TEST_F(Lanes, SmallTransfersAreEager) {
  EXPECT_TRUE(eager({}));
  EXPECT_TRUE(eager({sends(0, kMaxEager), receives(0, kMaxEager), sends(2, 0)}));
  EXPECT_FALSE(eager({sends(0, kMaxEager + 1)}));
  EXPECT_FALSE(eager({sends(0, 1)}, 0)) << "no transfer is";
}

TEST_F(Lanes, TwoOfOnePeerAndDirectionSideBySideAreNotEager) {
  EXPECT_FALSE(eager({sends(0, 8), sends(0, 8)}));
  EXPECT_FALSE(eager({sends(0, 8), receives(0, 8), sends(0, 8)}));
}

TEST_F(Lanes, MoreThanOneForEachPeerAndDirectionAreNotEager) {
  std::vector<Transfer> many;
  while (many.size() < 2 * kRanks)
    for (const uint32_t peer : {0, 2, 3}) many.push_back(sends(peer, 8));
  many.resize(2 * kRanks, sends(0, 8));
  EXPECT_TRUE(eager(many));
  many.push_back(sends(3, 8));
  EXPECT_FALSE(eager(many));
}

TEST_F(Lanes, WithItselfTheReceiveFollowsItsSend) {
  EXPECT_TRUE(eager({sends(kRank, 8), receives(kRank, 8)}));
  EXPECT_FALSE(eager({receives(kRank, 8), sends(kRank, 8)}));
  EXPECT_FALSE(eager({sends(kRank, 8)}));
  EXPECT_FALSE(eager({sends(kRank, 8), receives(kRank, 16)}));
  EXPECT_FALSE(eager({sends(kRank, 8), sends(2, 8), receives(kRank, 8)}));
}

TEST_F(Lanes, SegmentsAreNotEager) {
  const BufferSegment segment{memory_.data(), 0, {}};
  EXPECT_FALSE(eager({{0, true, View(std::span(&segment, 1)), 8}}));
}

TEST_F(Lanes, EachPeerAndDirectionHasOneInTheOrderOfTheCalls) {
  ASSERT_TRUE(make({sends(0, 8), receives(2, 16), sends(0, 24), receives(0, 32)}).ok());
  ASSERT_EQ(lanes_->lanes.size(), 3u);
  const auto sizes = [&](size_t lane) {
    std::vector<size_t> all;
    for (const LaneItem& item : lanes_->lanes[lane].items) all.push_back(item.count);
    return all;
  };
  EXPECT_EQ(lanes_->lanes[0].schedule, schedules_.send_lane(0));
  EXPECT_EQ(sizes(0), (std::vector<size_t>{8, 24}));
  EXPECT_EQ(lanes_->lanes[1].schedule, schedules_.receive_lane(2));
  EXPECT_EQ(sizes(1), (std::vector<size_t>{16}));
  EXPECT_EQ(lanes_->lanes[2].schedule, schedules_.receive_lane(0));
  EXPECT_EQ(sizes(2), (std::vector<size_t>{32}));
}

TEST_F(Lanes, WithItselfEachSendIsCopiedToItsReceive) {
  ASSERT_TRUE(make({receives(kRank, 8), sends(kRank, 8)}).ok());
  ASSERT_EQ(lanes_->lanes.size(), 1u);
  ASSERT_EQ(lanes_->lanes[0].items.size(), 1u);
  EXPECT_EQ(lanes_->lanes[0].items[0].input.base(), memory_.data());
  EXPECT_EQ(lanes_->lanes[0].items[0].output.base(), memory_.data() + 500);
}

TEST_F(Lanes, WhatDoesNotMatchWithItselfIsAnErrorThatSaysSo) {
  const auto expect_refused = [&](const std::vector<Transfer>& transfers, const std::string& words) {
    const Status status = make(transfers);
    EXPECT_EQ(status.code(), trInvalidUsage);
    EXPECT_EQ(status.message(), "trGroupEnd on rank 1: " + words);
    EXPECT_EQ(lanes_, nullptr);
  };
  expect_refused({sends(kRank, 8)}, "1 sends to itself and 0 receives from itself in one group");
  expect_refused({receives(kRank, 8)},
                 "its receive 0 from itself (8 bytes) has no send to itself of that size in the same group");
  expect_refused({sends(kRank, 8), receives(kRank, 16)},
                 "its receive 0 from itself (16 bytes) has no send to itself of that size in the same group");
}

}  // namespace
}  // namespace treering
