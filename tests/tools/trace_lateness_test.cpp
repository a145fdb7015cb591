// SPDX-License-Identifier: Apache-2.0
#include "lateness.h"

#include <gtest/gtest.h>

#include <optional>

namespace treering::trace {
namespace {

class LatenessTest : public ::testing::Test {
 protected:
  LatenessTest() {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      TracedProcess process;
      process.host = process.clock = "node1";
      process.pid = 100 + rank;
      process.rank = rank;
      trace_.processes.push_back(process);
      group().processes[rank] = {rank};
    }
  }

  TracedGroup& group() {
    if (trace_.communicators.empty()) trace_.communicators.push_back({"steps", "id", 4, {}, {}, {}});
    return trace_.communicators[0];
  }
  void add(uint64_t number, uint32_t rank, double begin, double waited, std::optional<uint32_t> waited_for = {}) {
    TracedCall& call = number == 0 ? group().uncounted.emplace_back() : group().calls[number];
    call.name = number == 0 ? "send-receive" : "allreduce";
    call.bytes = 8;
    CallRecord record;
    record.process = record.rank = rank;
    record.begin = begin;
    record.end = begin + waited + 1;
    record.waited = waited;
    record.waited_for = waited_for;
    call.records.push_back(record);
  }
  Lateness find(double least = 50) const { return find_late(trace_, Clocks(trace_), least); }

  Trace trace_;
};

TEST_F(LatenessTest, TheLastToBeginIsLate) {
  add(7, 0, 0, 1000, 1);  // it waited for rank 1, which waited itself
  add(7, 1, 100, 900, 2);
  add(7, 2, 1000, 200, 3);  // for data
  add(7, 3, 400, 580, 2);
  const Lateness late = find();
  ASSERT_EQ(late.ranks.size(), 1u);
  EXPECT_EQ(late.ranks[0].rank, 2u);
  EXPECT_EQ(late.ranks[0].times, 1u);
  EXPECT_EQ(late.ranks[0].lost, 1000 + 900 + 580);
  EXPECT_EQ(late.ranks[0].longest, 1000);
  EXPECT_EQ(late.ranks[0].worst, "allreduce 7 of steps");
  EXPECT_EQ(late.exchange, 200);
}

TEST_F(LatenessTest, WhatIsWaitedAfterTheLastHasBegunIsTheExchange) {
  for (uint32_t rank = 0; rank < 4; ++rank) add(1, rank, rank == 3 ? 100 : 0, 5000, (rank + 1) % 4);
  const Lateness late = find();
  ASSERT_EQ(late.ranks.size(), 1u);
  EXPECT_EQ(late.ranks[0].rank, 3u);
  EXPECT_EQ(late.ranks[0].lost, 300);
  EXPECT_EQ(late.exchange, 4 * 5000 - 300);
  EXPECT_TRUE(find(101).ranks.empty());
}

TEST_F(LatenessTest, WithoutAllRecordsTheWaitsAreFollowed) {
  add(2000, 0, 0, 1000, 1);
  add(2000, 1, 0, 1000, 2);
  const Lateness late = find();
  ASSERT_EQ(late.ranks.size(), 1u);
  EXPECT_EQ(late.ranks[0].rank, 2u);
  EXPECT_EQ(late.ranks[0].lost, 2000);
  EXPECT_EQ(late.ranks[0].times, 1u);
}

TEST_F(LatenessTest, ACircleOfWaitsBlamesNoRank) {
  add(2000, 0, 0, 1000, 1);
  add(2000, 1, 0, 800, 0);
  add(2000, 2, 0, 600);  // for none in particular
  const Lateness late = find();
  EXPECT_TRUE(late.ranks.empty());
  EXPECT_EQ(late.exchange, 2400);
}

TEST_F(LatenessTest, SendsAndReceivesCount) {
  add(0, 0, 0, 500, 3);
  add(0, 2, 0, 700, 3);
  add(0, 1, 0, 10, 3);
  const Lateness late = find();
  ASSERT_EQ(late.ranks.size(), 1u);
  EXPECT_EQ(late.ranks[0].rank, 3u);
  EXPECT_EQ(late.ranks[0].times, 2u);
  EXPECT_EQ(late.ranks[0].worst, "send-receive of steps");
}

TEST_F(LatenessTest, WhoCostsMostComesFirst) {
  for (uint64_t number = 1; number <= 3; ++number)
    for (uint32_t rank = 0; rank < 4; ++rank) add(number, rank, rank == 1 ? 100 : 0, rank == 1 ? 0 : 100, 1);
  for (uint32_t rank = 0; rank < 4; ++rank) add(9, rank, rank == 3 ? 9000 : 0, rank == 3 ? 0 : 9000, 3);
  const Lateness late = find();
  ASSERT_EQ(late.ranks.size(), 2u);
  EXPECT_EQ(late.ranks[0].rank, 3u);
  EXPECT_EQ(late.ranks[1].rank, 1u);
  EXPECT_EQ(late.ranks[1].times, 3u);
}

TEST_F(LatenessTest, WaitsForARankWithoutAFileAreKnownAsThat) {
  group().processes.erase(3);
  trace_.processes.pop_back();
  add(5, 0, 0, 1000, 3);
  const Lateness late = find();
  EXPECT_TRUE(late.ranks.empty());
  EXPECT_EQ(late.unknown, 1000);
}

// Where clocks are joined to some error, an order within it says nothing.
TEST_F(LatenessTest, NoRankIsLateByLessThanTheErrorOfTheClocks) {
  for (uint32_t rank = 0; rank < 4; ++rank) trace_.processes[rank].clock = rank < 2 ? "a" : "b";
  for (uint32_t rank = 0; rank < 4; ++rank) add(1, rank, rank == 3 ? 300 : 0, rank == 3 ? 0 : 1000, 3);
  const Clocks clocks(trace_);
  ASSERT_GT(clocks.error(3), 300);
  const Lateness late = find();
  for (const LateRank& each : late.ranks) EXPECT_LE(each.times, 1u);
  EXPECT_GE(late.exchange, 2000);
}

}  // namespace
}  // namespace treering::trace
