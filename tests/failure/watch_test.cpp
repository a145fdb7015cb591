// SPDX-License-Identifier: Apache-2.0
// What the deadline's verdict says of ranks that wait for each other, by what they show while it is found, and of a rank
// to which there is no connection. Rank 0 asks.
#include "failure/watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace treering {
namespace {

using std::chrono::milliseconds;

// Three ranks of this process. All but `lifeless` show a sign of life whenever they are looked at.
class Ranks final : public StatusReader {
 public:
  const RankStatus* mapped_status(uint32_t) const override { return nullptr; }
  bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const override {
    if (peer != lifeless) ++shown[peer].heartbeat;
    *snapshot = shown[peer];
    if (after_a_look) after_a_look(peer);
    return true;
  }
  bool reads_status(uint32_t) const override { return true; }

  mutable std::vector<RankStatusSnapshot> shown{3};
  uint32_t lifeless = UINT32_MAX;
  std::function<void(uint32_t peer)> after_a_look;
};

// A link whose connection is away.
class AwayQueue final : public SendQueue {
 public:
  bool flush() override { return false; }
  Status health() const override { return {}; }
  std::optional<Clock::time_point> away_since() const override { return since; }

  std::optional<Clock::time_point> since;
};

// The verdict of rank 0 in a receive from `peer`, or in `operation`, which moves whenever it is looked at or not at all.
std::string verdict(const Ranks& ranks, uint32_t peer, uint64_t operation = 0, SendQueue* queue = nullptr,
                    bool moves = false) {
  constexpr int kTimeoutMs = 50;
  auto status = std::make_unique<RankStatus>();
  status->operation = operation;
  ExecutorContext context;
  context.ranks = 3;
  context.status = status.get();
  if (queue != nullptr) context.add_queue(peer, queue);
  PeerIdentity here;
  here.pid = static_cast<uint32_t>(getpid());
  Watch watch(&context, &ranks, &status->failure, std::make_shared<std::vector<PeerIdentity>>(3, here), kTimeoutMs, "",
              nullptr, true);
  Call call;
  call.operation = operation;
  watch.start(&call);
  Status found;
  uint64_t steps = 0;
  for (const auto until = Clock::now() + std::chrono::seconds(20); found.ok() && Clock::now() < until; usleep(1000))
    found = watch.check(peer, moves ? ++steps : 0);
  EXPECT_EQ(found.code(), trTimeout);
  return found.message();
}

std::string name_of(int rank) { return "rank " + std::to_string(rank) + " (pid " + std::to_string(getpid()) + ")"; }

void expect_contains(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(": " + words + ". Rank 0 waited for rank 1"), std::string::npos) << text;
}

TEST(TwoRanksThatWait, InSendsAndReceives) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 2 + 1;
  ranks.shown[2].waiting_for = 1 + 1;
  expect_contains(verdict(ranks, 1), name_of(1) + " and " + name_of(2) +
                                         " are alive and wait for each other: what they sent has not arrived");
}

// The receive's deadline comes first.
TEST(TwoRanksThatWait, ACollectiveAndTheReceiveThatAsks) {
  Ranks ranks;
  ranks.shown[1].operation = 1;
  ranks.shown[1].waiting_for = 0 + 1;
  expect_contains(verdict(ranks, 1), name_of(0) +
                                         " waits for rank 1 in a send or receive, which waits for it in operation 1 "
                                         "(allreduce of 0 x int8, sum): their calls do not match, or what they sent "
                                         "has not arrived");
}

// The collective's deadline comes first.
TEST(TwoRanksThatWait, AReceiveAndTheCollectiveThatAsks) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 0 + 1;
  ranks.shown[2].operation = 1;
  expect_contains(
      verdict(ranks, 1, 1),
      name_of(1) + " has not entered it (its last is operation 0; it waits in a send or receive for rank 0)");
}

TEST(TwoRanksThatWait, ACollectiveAndAReceiveOfOthers) {
  Ranks ranks;
  ranks.shown[1].waiting_for = 2 + 1;
  ranks.shown[2].operation = 1;
  ranks.shown[2].waiting_for = 1 + 1;
  expect_contains(verdict(ranks, 1), name_of(1) +
                                         " waits for rank 2 in a send or receive, which waits for it in operation 1 "
                                         "(allreduce of 0 x int8, sum): their calls do not match, or what they sent "
                                         "has not arrived");
}

// Each waits for the other when it is looked at, but not both at one time.
TEST(TwoRanksThatWait, AreNotSaidToWhereOneHasGoneOnMeanwhile) {
  for (const bool in_operations : {false, true}) {
    Ranks ranks;
    ranks.shown[1].operation = in_operations ? 1 : 0;
    ranks.shown[1].waiting_for = 2 + 1;
    ranks.shown[2].waiting_for = 1 + 1;
    ranks.after_a_look = [&](uint32_t peer) {
      if (!in_operations) ranks.shown[1].waiting_for = peer == 2 ? 0 + 1 : 2 + 1;
      if (in_operations && peer == 2) ranks.shown[1].completed = ranks.shown[1].operation++;
    };
    expect_contains(verdict(ranks, 1),
                    name_of(2) + " is alive, waiting for rank 1, which has gone on or left meanwhile");
  }
}

// A rank shows one of those that it waits for. The one that holds up both is named, unless it has done its part.
TEST(TwoRanksThatWait, AreNotNamedWhereAThirdOneShowsNoSignOfLife) {
  for (const uint64_t completed : {0, 1}) {
    Ranks ranks;
    ranks.shown[1].operation = ranks.shown[2].operation = 1;
    ranks.shown[1].waiting_for = 0 + 1;
    ranks.shown[2].completed = completed;
    ranks.lifeless = 2;
    const std::string text = verdict(ranks, 1, 1);
    const std::string named = ": " + name_of(2) + " has shown no sign of life for ";
    EXPECT_EQ(text.find(named) != std::string::npos, completed == 0) << text;
    EXPECT_EQ(text.find(" wait for each other") != std::string::npos, completed == 1) << text;
  }
}

// What others sent before they failed and left still comes, and gives the one that waits no other deadline.
TEST(ARankWithoutAConnection, IsNotWaitedForLongerBecauseOthersMove) {
  Ranks ranks;
  AwayQueue queue;
  queue.since = Clock::now();
  const std::string text = verdict(ranks, 1, 0, &queue, true);
  EXPECT_EQ(text.rfind("no connection to " + name_of(1) + " within 50 ms in a send or receive: ", 0), 0u) << text;
}

TEST(ARankWithoutAConnection, IsNotSaidToHaveNoneWhereNothingElseMoves) {
  Ranks ranks;
  AwayQueue queue;
  queue.since = Clock::now();
  const std::string text = verdict(ranks, 1, 0, &queue);
  EXPECT_EQ(text.rfind("no progress within 50 ms in a send or receive: ", 0), 0u) << text;
}

}  // namespace
}  // namespace treering
