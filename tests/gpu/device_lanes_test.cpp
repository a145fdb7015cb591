// SPDX-License-Identifier: Apache-2.0
// Rows of lanes for a kernel: which channel and row a transfer gets, and the table that is written.
#include "gpu/device_lanes.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

constexpr uint32_t kRank = 1, kRanks = 4;

class Lanes : public ::testing::Test {
 protected:
  Operation operation_;
  DeviceLanes lanes_;
  std::vector<std::byte> table_;
  std::byte memory_[64];

  Lanes() { operation_.function = "trGroupEnd"; }
  void add(uint32_t peer, bool send, size_t bytes, size_t at) {
    operation_.eager_transfers.push_back({peer, send, View(memory_ + at), bytes});
  }
  Status plan(uint32_t channels) { return DeviceLanes::plan(operation_, kRank, kRanks, channels, &lanes_); }
  const cuda::DeviceRow* written() {
    table_.assign(lanes_.table_bytes() + 1, std::byte{0x5a});
    const cuda::DeviceRow* rows = lanes_.write_table(table_.data());
    EXPECT_EQ(table_.back(), std::byte{0x5a}) << "written behind the table";
    return rows;
  }
};

TEST_F(Lanes, NothingIsAnEmptyTable) {
  ASSERT_TRUE(plan(2).ok());
  EXPECT_TRUE(lanes_.empty());
  EXPECT_EQ(lanes_.rows_of_channel(), 0u);
  EXPECT_EQ(lanes_.table_bytes(), 0u);
}

// Both sides of a pair find the same channel: (rank + peer) modulo their number.
TEST_F(Lanes, ARowHasTheTransfersOfAPairOneWayInTheirOrder) {
  add(2, true, 10, 0);
  add(2, false, 11, 1);
  add(2, true, 12, 2);
  add(0, true, 13, 3);
  add(2, true, 14, 4);
  ASSERT_TRUE(plan(2).ok());
  EXPECT_FALSE(lanes_.empty());
  ASSERT_EQ(lanes_.rows_of_channel(), 3u) << "all on channel 1: to 2, from 2, to 0";
  EXPECT_EQ(lanes_.table_bytes(), 6 * sizeof(cuda::DeviceRow) + 5 * sizeof(cuda::DeviceLane));
  const cuda::DeviceRow* rows = written();
  const auto row = [&](uint32_t channel, uint32_t index) { return rows[index * 2 + channel]; };
  for (uint32_t index = 0; index < 3; ++index) EXPECT_EQ(row(0, index).count, 0u);
  ASSERT_EQ(row(1, 0).count, 3u);
  for (size_t i = 0; i < 3; ++i) {
    const cuda::DeviceLane& lane = row(1, 0).lanes[i];
    EXPECT_EQ(lane.kind, static_cast<uint32_t>(cuda::kSendLane));
    EXPECT_EQ(lane.peer, 2u);
    EXPECT_EQ(lane.bytes, 10 + 2 * i);
    EXPECT_EQ(lane.input, memory_ + 2 * i);
    EXPECT_EQ(lane.output, nullptr);
  }
  ASSERT_EQ(row(1, 1).count, 1u);
  EXPECT_EQ(row(1, 1).lanes->kind, static_cast<uint32_t>(cuda::kReceiveLane));
  EXPECT_EQ(row(1, 1).lanes->output, memory_ + 1);
  EXPECT_EQ(row(1, 1).lanes->input, nullptr);
  ASSERT_EQ(row(1, 2).count, 1u);
  EXPECT_EQ(row(1, 2).lanes->peer, 0u);
}

TEST_F(Lanes, PairsAreSpreadOverTheChannels) {
  for (uint32_t peer : {0u, 2u, 3u}) add(peer, true, 8, peer);
  ASSERT_TRUE(plan(4).ok());
  EXPECT_EQ(lanes_.rows_of_channel(), 1u);
  const cuda::DeviceRow* rows = written();
  EXPECT_EQ(rows[(kRank + 0) % 4].lanes->peer, 0u);
  EXPECT_EQ(rows[(kRank + 2) % 4].lanes->peer, 2u);
  EXPECT_EQ(rows[(kRank + 3) % 4].lanes->peer, 3u);
  EXPECT_EQ(rows[2].count, 0u);
}

// To and from itself become copies: the first send goes to the first receive, though all sends come before.
TEST_F(Lanes, WhatARankSendsToItselfIsCopied) {
  add(kRank, true, 5, 0);
  add(kRank, true, 6, 8);
  add(kRank, false, 5, 16);
  add(kRank, false, 6, 24);
  ASSERT_TRUE(plan(1).ok());
  ASSERT_EQ(lanes_.rows_of_channel(), 1u);
  const cuda::DeviceRow* rows = written();
  ASSERT_EQ(rows[0].count, 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rows[0].lanes[i].kind, static_cast<uint32_t>(cuda::kCopyLane));
    EXPECT_EQ(rows[0].lanes[i].bytes, 5 + i);
    EXPECT_EQ(rows[0].lanes[i].input, memory_ + 8 * i);
    EXPECT_EQ(rows[0].lanes[i].output, memory_ + 16 + 8 * i);
  }
}

TEST_F(Lanes, ReceivesFromItselfNeedASendOfTheSameSize) {
  add(kRank, true, 5, 0);
  add(kRank, false, 6, 8);
  Status status = plan(1);
  EXPECT_EQ(status.code(), trInvalidUsage);
  EXPECT_EQ(status.message(), "trGroupEnd: rank 1 receives 6 bytes from itself that it does not send");
  operation_.eager_transfers.clear();
  add(kRank, false, 6, 8);
  EXPECT_EQ(plan(1).code(), trInvalidUsage);
  operation_.eager_transfers.clear();
  add(kRank, true, 5, 0);
  status = plan(1);
  EXPECT_EQ(status.code(), trInvalidUsage);
  EXPECT_EQ(status.message(), "trGroupEnd: rank 1 sends to itself what it does not receive");
}

TEST_F(Lanes, AnotherPlanReplacesTheFirst) {
  for (uint32_t peer : {0u, 2u, 3u}) add(peer, true, 8, peer);
  ASSERT_TRUE(plan(1).ok());
  EXPECT_EQ(lanes_.rows_of_channel(), 3u);
  operation_.eager_transfers.clear();
  ASSERT_TRUE(plan(2).ok());
  EXPECT_TRUE(lanes_.empty());
  EXPECT_EQ(lanes_.table_bytes(), 0u);
}

}  // namespace
}  // namespace treering
