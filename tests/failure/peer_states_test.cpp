// SPDX-License-Identifier: Apache-2.0
// What a rank knows of others that have left, were lost or have ended, and what it says of them. Rank 0 asks.
#include "failure/peer_states.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

namespace treering {
namespace {

class ShownRanks final : public StatusReader {
 public:
  const RankStatus* mapped_status(uint32_t) const override { return nullptr; }
  bool read_status(uint32_t peer, RankStatusSnapshot* snapshot) const override {
    *snapshot = shown[peer];
    return readable;
  }
  bool reads_status(uint32_t) const override { return true; }

  std::vector<RankStatusSnapshot> shown{4};
  bool readable = true;
};

// The process id of one that has ended and was waited for.
uint32_t ended_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return static_cast<uint32_t>(child);
}

struct Known {
  explicit Known(std::vector<uint32_t> pids = std::vector<uint32_t>(4, static_cast<uint32_t>(getpid()))) {
    context.ranks = 4;
    context.status = status.get();
    auto made = std::make_shared<std::vector<PeerIdentity>>(4);
    for (size_t i = 0; i < 4; ++i) (*made)[i].pid = pids[i];
    peers = std::make_unique<PeerStates>(&context, &ranks, made, nullptr, std::chrono::milliseconds(1000));
  }

  ShownRanks ranks;
  std::unique_ptr<RankStatus> status = std::make_unique<RankStatus>();
  ExecutorContext context;
  std::unique_ptr<PeerStates> peers;
};

std::string pid_text() { return "(pid " + std::to_string(getpid()) + ")"; }

TEST(PeerStates, ALostRankIsToldWithTheReason) {
  Known known;
  known.peers->note_lost({2}, "its process was killed");
  EXPECT_EQ(known.peers->find_lost(2, "operation 7 (barrier)").message(),
            "rank 2 " + pid_text() + " was lost in or before operation 7 (barrier): its process was killed");
  EXPECT_EQ(known.peers->find_lost(2, "").code(), trRemoteError);
  EXPECT_TRUE(known.peers->find_lost(1, "").ok());
  EXPECT_TRUE(known.peers->has_lost_any({1, 2}));
  EXPECT_FALSE(known.peers->has_lost_any({1, 3}));
  EXPECT_FALSE(known.peers->has_left(2));
}

TEST(PeerStates, ARankThatLeftIsNotLost) {
  Known known;
  known.peers->note_left(1, {});
  known.peers->note_lost({1}, "its connection ended");  // a consequence
  EXPECT_TRUE(known.peers->has_left_in_order(1));
  EXPECT_FALSE(known.peers->has_lost_any({1}));
  EXPECT_EQ(known.peers->find_lost(1, "operation 3 (barrier)").message(),
            "rank 1 " + pid_text() + " destroyed its communicator in or before operation 3 (barrier)");
  EXPECT_TRUE(known.peers->check_death(1, "trCommShrink").ok());
}

TEST(PeerStates, ARankThatLeftForAFailureIsSaidByThat) {
  Known known;
  const Status cause(trTimeout, "no progress");
  known.peers->note_left(1, cause);
  EXPECT_TRUE(known.peers->has_left(1));
  EXPECT_FALSE(known.peers->has_left_in_order(1));
  EXPECT_EQ(known.peers->find_lost(1, "operation 3").message(), cause.message());
}

TEST(PeerStates, WhatMemorySaysOfARankThatLeftCounts) {
  Known known;
  known.ranks.shown[3].left = true;
  EXPECT_TRUE(known.peers->has_left_in_order(3));
  known.ranks.shown[3].failed = true;
  EXPECT_TRUE(known.peers->has_left(3));
  EXPECT_FALSE(known.peers->has_left_in_order(3));
}

TEST(PeerStates, AProcessThatHasEndedWithoutLeavingIsDead) {
  const uint32_t ended = ended_process(), own = static_cast<uint32_t>(getpid());
  Known known({own, ended, own, ended});
  known.ranks.shown[3].left = true;
  uint32_t peer = 0;
  EXPECT_TRUE(known.peers->find_dead(&peer));
  EXPECT_EQ(peer, 1u);
  EXPECT_EQ(known.peers->check_deaths({0, 1, 2, 3}, "trCommShrink").message(),
            "rank 1 (pid " + std::to_string(ended) + ") has died in or before trCommShrink");
  EXPECT_EQ(known.peers->lost_ranks(), (std::vector<uint32_t>{1, 3}));
}

TEST(PeerStates, ARankWhoseMemoryCannotBeReadIsGone) {
  Known known;
  known.ranks.readable = false;
  EXPECT_EQ(known.peers->end_of(1, "operation 3", ", it seems").message(),
            "rank 1 " + pid_text() + " is gone (its memory cannot be read) in or before operation 3, it seems");
  EXPECT_FALSE(known.peers->has_left(1));
  EXPECT_TRUE(known.peers->check_death(1, "operation 3").ok()) << "its process lives";
}

TEST(PeerStates, LostRanksAreInOrderAndNeverTheOwn) {
  Known known;
  known.peers->note_lost({3, 0}, "cut off");
  known.peers->note_left(1, {});
  EXPECT_EQ(known.peers->lost_ranks(), (std::vector<uint32_t>{1, 3}));
}

TEST(PeerStates, GpusThatAreBehindAreNamed) {
  Known known;
  for (auto& shown : known.ranks.shown) shown.device_collectives = 5;
  known.ranks.shown[2].device_collectives = 4;
  EXPECT_EQ(known.peers->late_gpus(5), "rank 2 " + pid_text() + " has not given its GPU collective 5 (it is at 4)");
  EXPECT_TRUE(known.peers->is_awaited_by_gpus()) << "this rank is at 0";
  known.status->device_collectives = 5;
  EXPECT_FALSE(known.peers->is_awaited_by_gpus());
}

}  // namespace
}  // namespace treering
