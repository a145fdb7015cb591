// SPDX-License-Identifier: Apache-2.0
// Who is named when ranks are missing at the rendezvous root.
#include "bootstrap/rendezvous_root.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace treering {
namespace {

constexpr Clock::time_point kNow = Clock::time_point() + std::chrono::seconds(100);
constexpr uint32_t kRanks = 6;  // in processes of one host: process 5 is below process 1, the others below process 0

Place place_of(uint32_t process) {
  Place place;
  place.local = 100 + process;
  place.pid = 1000 + process;
  place.host_name = "a";
  return place;
}

class MissingRanks : public ::testing::Test {
 protected:
  MissingRanks() : root_(place_of(0), "host") {
    for (uint32_t process = 1; process < kRanks; ++process) {
      JoinMessage join;
      join.host = "host";
      join.place = place_of(process);
      (void)root_.place(join);
    }
  }
  void arrive(uint32_t rank, int timeout_ms = 0, Clock::time_point now = kNow) {
    HelloMessage hello;
    hello.rank = hello.process = rank;
    hello.ranks = kRanks;
    hello.pid = 1000 + rank;
    hello.timeout_ms = timeout_ms;
    bool complete = false;
    ASSERT_TRUE(root_.hello(hello, now, &complete).ok());
  }

  RendezvousRoot root_;
};

TEST_F(MissingRanks, TheEarliestDeadlineOfTheRanksCountsSinceEachArrived) {
  arrive(0);
  EXPECT_EQ(root_.deadline(), Clock::time_point::max());
  arrive(1, 5000);
  EXPECT_EQ(root_.deadline(), kNow + std::chrono::seconds(5));
  arrive(2, 4000, kNow + std::chrono::seconds(2));
  EXPECT_EQ(root_.deadline(), kNow + std::chrono::seconds(5));
  arrive(3, 1000, kNow + std::chrono::seconds(3));
  EXPECT_EQ(root_.deadline(), kNow + std::chrono::seconds(4));
}

TEST_F(MissingRanks, OneThatStoppedAnsweringIsNamedAndNotTheOneBehindIt) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{0, ""}, {2, ""}, {3, ""}, {4, ""}};
  for (const std::set<uint32_t>& silent : {std::set<uint32_t>{1}, {1, 5}})
    EXPECT_EQ(root_.missing(&answered, silent),
              "rank 1 (pid 1001 on a, stopped answering) of 6 ranks; rank 5 (pid 1005 on a) is heard through rank 1 "
              "(pid 1001 on a) alone");
}

// Whether it has given its part is not known: the network may have been cut behind that of its parent.
TEST_F(MissingRanks, OneBehindAProcessThatStoppedAnsweringIsNotLate) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{0, ""}, {1, ""}, {2, ""}, {3, ""}, {4, ""}};
  EXPECT_EQ(
      root_.missing(&answered, {1}),
      "rank 5 (pid 1005 on a, heard through process 1 (pid 1001 on a) alone, which stopped answering) of 6 ranks");
}

TEST_F(MissingRanks, OneThatAnswersIsLateAndHasNotStopped) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{0, ""}, {3, ""}, {4, ""}, {5, ""}};
  EXPECT_EQ(root_.missing(&answered, {}),
            "rank 1 (pid 1001 on a, not at this step yet), rank 2 (pid 1002 on a, not at this step yet) of 6 ranks");
}

// They may wait for the one that does not answer.
TEST_F(MissingRanks, OneThatAnswersIsNotBlamedBesideOneThatStoppedAnswering) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{1, ""}, {4, ""}, {5, ""}};
  EXPECT_EQ(root_.missing(&answered, {3}),
            "rank 3 (pid 1003 on a, stopped answering) of 6 ranks; rank 2 (pid 1002 on a) is not at this step yet; "
            "rank 0 (pid 1000 on a) is not at this step yet");
}

TEST_F(MissingRanks, OneOfTheRootsOwnProcessHasNotStoppedAnswering) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{1, ""}, {2, ""}, {3, ""}, {4, ""}, {5, ""}};
  EXPECT_EQ(root_.missing(&answered, {}), "rank 0 (pid 1000 on a, not at this step yet) of 6 ranks");
}

// It is heard as long as the root speaks; of the other one nothing is certain.
TEST_F(MissingRanks, OneOfTheRootsOwnProcessIsNotBlamedBesideAnother) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{1, ""}, {3, ""}, {4, ""}, {5, ""}};
  EXPECT_EQ(root_.missing(&answered, {}),
            "rank 2 (pid 1002 on a, not at this step yet) of 6 ranks; rank 0 (pid 1000 on a) is not at this step yet");
}

TEST_F(MissingRanks, OneThatHasNotComeHasNoPid) {
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    if (rank != 5) arrive(rank);
  EXPECT_EQ(root_.missing(nullptr, {}),
            "rank 5 of 6 ranks; process 5 (pid 1005 on a) has come, and is heard through rank 1 "
            "(pid 1001 on a) alone");
}

TEST_F(MissingRanks, OneBelowAnotherThatAnswersIsAtFaultItself) {
  for (uint32_t rank = 0; rank < kRanks; ++rank) arrive(rank);
  const std::map<uint32_t, std::string> answered = {{0, ""}, {1, ""}, {2, ""}, {3, ""}, {4, ""}};
  EXPECT_EQ(root_.missing(&answered, {5}), "rank 5 (pid 1005 on a, stopped answering) of 6 ranks");
}

TEST_F(MissingRanks, TheWarningSaysHowLongTheFirstRankHasWaited) {
  for (uint32_t rank = 1; rank < kRanks; ++rank) arrive(rank, 0, kNow + std::chrono::seconds(rank));
  EXPECT_EQ(root_.still_waiting(kNow + std::chrono::seconds(11)),
            "the first rank has been waiting for 10 s for rank 0 of 6 ranks; there is no deadline");
}

TEST_F(MissingRanks, TheWarningSaysWhenTheDeadlineIs) {
  for (uint32_t rank = 1; rank < kRanks; ++rank) arrive(rank, 30'000);
  EXPECT_EQ(
      root_.still_waiting(kNow + std::chrono::seconds(10)),
      "the first rank has been waiting for 10 s for rank 0 of 6 ranks; the deadline (TREERING_TIMEOUT) is in 20 s");
}

}  // namespace
}  // namespace treering
