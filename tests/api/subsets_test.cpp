// SPDX-License-Identifier: Apache-2.0
// Communicators that grow, subsets in groups and after a revocation, and the shapes that a communicator tells.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

// A process that waits for an id, beside ranks that have one communicator already.
class GrowFromTwo : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, GrowFromTwo, ::testing::Values("shared-memory", "cma", "tcp"));

TEST_P(GrowFromTwo, NewRanksFollow) {
  int ids[2];
  ASSERT_EQ(pipe(ids), 0);
  // Ranks 0 and 1 have a communicator; ranks 2 and 3 join them.
  RankProcesses processes(4, [&ids](int rank, const trUniqueId& id) {
    trConfig_t config = config_with_timeout(60'000);
    config.transports = GetParam();
    trUniqueId invitation;
    trComm_t pair, grown;
    if (rank < 2) {
      TR_CHECK(trCommInitRankConfig(&pair, 2, id, rank, &config));
      if (rank == 1) {
        TR_CHECK(trGetUniqueId(&invitation));
        for (int i = 0; i < 2; ++i)
          if (write(ids[1], &invitation, sizeof invitation) != sizeof invitation) return 101;
      }
      TR_CHECK(trCommGrow(pair, 4, rank == 1 ? &invitation : nullptr, &grown, nullptr));
    } else {
      if (read(ids[0], &invitation, sizeof invitation) != sizeof invitation) return 102;
      TR_CHECK(trCommInitRankConfig(&grown, 4, invitation, rank, &config));
    }
    int own = -1, sum = 0, of_pair = 2;
    TR_CHECK(trCommRank(grown, &own));
    TR_CHECK(count_by_sum(grown, &sum));
    if (rank < 2) TR_CHECK(count_by_sum(pair, &of_pair));  // it stays as it is
    if (rank < 2) TR_CHECK(trCommDestroy(pair));
    TR_CHECK(trCommDestroy(grown));
    return own == rank && sum == 4 && of_pair == 2 ? 0 : 103;
  });
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
  for (int end : ids) close(end);
}

TEST(Grow, AfterADeathAndInAGroup) {
  int ids[2];
  ASSERT_EQ(pipe(ids), 0);
  RankProcesses processes(4, [&ids](int rank, const trUniqueId& id) {
    trComm_t comm, rest, grown;
    trUniqueId invitation;
    const int lost = 1;
    int sum = 0;
    if (rank == 3) {  // takes the place of the dead rank
      if (read(ids[0], &invitation, sizeof invitation) != sizeof invitation) return 101;
      TR_CHECK(trCommInitRank(&grown, 3, invitation, 2));
      TR_CHECK(count_by_sum(grown, &sum));
      TR_CHECK(trCommDestroy(grown));
      return sum;
    }
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    for (int i = 0; count_by_sum(comm, &sum) == trSuccess; ++i)
      if (i == 20) reached();
    if (trCommGrow(comm, 4, nullptr, &grown, nullptr) != trRemoteError || grown != nullptr) return 102;
    TR_CHECK(trCommShrink(comm, &lost, 1, &rest, nullptr, TR_SHRINK_ABORT));
    if (rank == 0) {
      TR_CHECK(trGetUniqueId(&invitation));
      if (write(ids[1], &invitation, sizeof invitation) != sizeof invitation) return 103;
    }
    TR_CHECK(trGroupStart());
    TR_CHECK(trCommGrow(rest, 3, rank == 0 ? &invitation : nullptr, &grown, nullptr));
    TR_CHECK(trGroupEnd());
    TR_CHECK(count_by_sum(grown, &sum));
    TR_CHECK(trCommDestroy(grown));
    return sum;
  });
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(1), SIGKILL);
  for (int rank : {0, 2, 3}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ": " << result.output;
  }
  for (int end : ids) close(end);
}

// It has no part in the communicator that grows, and may come before or after that has failed.
TEST(Grow, TheNewRankHearsAtOnceThatTheOthersFailed) {
  for (const bool comes_late : {false, true}) {
    int ids[2];
    ASSERT_EQ(pipe(ids), 0);
    SharedNumber has_failed;
    RankProcesses processes(3, [&, comes_late](int rank, const trUniqueId& id) {
      const trConfig_t config = config_with_timeout(60'000);
      trComm_t comm, grown;
      trUniqueId invitation;
      if (rank == 2) {
        if (read(ids[0], &invitation, sizeof invitation) != sizeof invitation) return 101;
        if (comes_late && !soon([&] { return *has_failed == 1; })) return 102;
        const trResult_t result = trCommInitRankConfig(&grown, 3, invitation, 2, &config);
        say(trGetLastError(nullptr));
        *has_failed = 2;
        return result == trRemoteError ? 0 : 103;
      }
      TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
      if (rank == 1) {  // dies before it calls
        reached();
        pause();
      }
      TR_CHECK(trGetUniqueId(&invitation));
      if (write(ids[1], &invitation, sizeof invitation) != sizeof invitation) return 104;
      reached();
      if (trCommGrow(comm, 3, &invitation, &grown, nullptr) != trRemoteError) return 105;
      if (comes_late) *has_failed = 1;
      return soon([&] { return *has_failed == 2; }) ? 0 : 106;  // it must live until the new rank has come
    });
    for (int rank : {0, 1}) ASSERT_TRUE(processes.wait_until_reached(rank));
    kill(processes.pid(1), SIGKILL);
    const std::string dead = "rank 1 (pid " + std::to_string(processes.pid(1));
    for (int rank : {0, 2}) {
      const RankResult result = processes.wait(rank);
      EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
      if (rank == 0) continue;
      EXPECT_NE(result.output.find("was to grow has failed"), std::string::npos) << result.output;
      EXPECT_NE(result.output.find(dead), std::string::npos) << result.output;
    }
    for (int end : ids) close(end);
  }
}

TEST(Grow, WhatDiffersIsNamedOnAllRanks) {
  RankGroup ranks(2);
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  struct Case {
    int nranks[2];
    bool gives[2];
    trResult_t result;
    const char* text;
  };
  for (const Case& each :
       {Case{{3, 4}, {true, false}, trInvalidUsage, "nranks differs: rank 0 gave 3, rank 1 gave 4"},
        Case{{3, 3}, {true, true}, trInvalidUsage, "ranks 0 and 1 gave an id; one does"},
        Case{{3, 3}, {false, false}, trInvalidUsage, "no rank gave an id"},
        Case{{2, 2}, {false, true}, trInvalidArgument, "nranks is 2; give more than the communicator's 2"}}) {
    std::thread threads[2];
    for (int rank = 0; rank < 2; ++rank)
      threads[rank] = std::thread([&, rank] {
        trComm_t grown = ranks.comm(rank);
        EXPECT_EQ(trCommGrow(ranks.comm(rank), each.nranks[rank], each.gives[rank] ? &id : nullptr, &grown, nullptr),
                  each.result);
        EXPECT_EQ(grown, nullptr);
        EXPECT_NE(std::string(trGetLastError(nullptr)).find(each.text), std::string::npos) << trGetLastError(nullptr);
      });
    for (std::thread& thread : threads) thread.join();
  }
  trComm_t grown = nullptr;
  EXPECT_EQ(trCommGrow(ranks.comm(0), 3, &id, nullptr, nullptr), trInvalidArgument);
  EXPECT_EQ(trCommGrow(ranks.comm(0), 1025, &id, &grown, nullptr), trInvalidArgument);
  EXPECT_EQ(trCommGrow(nullptr, 3, &id, &grown, nullptr), trInvalidArgument);
}

// Made one after another, in the order of the calls, although they are of one communicator.
TEST(Groups, MakeSeveralCommunicatorsOfOne) {
  RankGroup ranks(3);
  trComm_t copies[3], halves[3], later[3];
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(trCommDup(ranks.comm(rank), &copies[rank]), trSuccess);
    EXPECT_EQ(trCommSplit(ranks.comm(rank), rank % 2, -rank, &halves[rank], nullptr), trSuccess);
    EXPECT_EQ(trCommDup(ranks.comm(rank), &later[rank]), trSuccess);
  }
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  for (int rank = 0; rank < 3; ++rank) {
    int own = -1, count = 0;
    EXPECT_EQ(trCommRank(copies[rank], &own), trSuccess);
    EXPECT_EQ(own, rank);
    EXPECT_EQ(trCommCount(halves[rank], &count), trSuccess);
    EXPECT_EQ(count, rank == 1 ? 1 : 2);
  }
  for (auto* made : {&copies, &halves, &later})
    for (trComm_t comm : *made) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

TEST(Revoke, EndsAWaitingCallAndLeavesSplits) {
  RankGroup ranks(2);
  std::thread waiter([&] {
    int sum = 0;
    EXPECT_EQ(count_by_sum(ranks.comm(0), &sum), trRemoteError);
  });
  trResult_t state = trSuccess;
  const auto begin = std::chrono::steady_clock::now();
  while (state != trInProgress && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
    EXPECT_EQ(trCommGetAsyncError(ranks.comm(0), &state), trSuccess) << "while the other thread waits";
  EXPECT_EQ(state, trInProgress);
  EXPECT_EQ(trCommRevoke(ranks.comm(0)), trSuccess);
  waiter.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(trCommRevoke(ranks.comm(rank)), trSuccess);
    EXPECT_EQ(trCommGetAsyncError(ranks.comm(rank), &state), trSuccess);
    EXPECT_EQ(state, trRemoteError);
  }
  trComm_t halves[2];
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(trCommSplit(ranks.comm(rank), 0, -rank, &halves[rank], nullptr), trSuccess);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  int own = -1;
  EXPECT_EQ(trCommRank(halves[0], &own), trSuccess);
  EXPECT_EQ(own, 1);
  for (trComm_t half : halves) EXPECT_EQ(trCommDestroy(half), trSuccess);
  EXPECT_EQ(trCommRevoke(nullptr), trInvalidArgument);
}

TEST(Shapes, RingsAndTreesOfAllRanksFit) {
  for (int n : {1, 2, 3, 5, 8}) {
    RankGroup ranks(n);
    std::vector<int> ring(static_cast<size_t>(n), -1), first;
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_EQ(trCommGetRing(ranks.comm(rank), ring.data()), trSuccess);
      if (rank == 0) first = ring;
      EXPECT_EQ(ring, first);
    }
    EXPECT_EQ(std::set<int>(ring.begin(), ring.end()).size(), static_cast<size_t>(n));
    for (int tree : {0, 1}) {
      int parents[8], children[8][2], edges = 0;
      for (int rank = 0; rank < n; ++rank)
        ASSERT_EQ(trCommGetTree(ranks.comm(rank), tree, &parents[rank], children[rank]), trSuccess);
      for (int rank = 0; rank < n; ++rank)
        for (int child : children[rank])
          if (child >= 0) {
            ++edges;
            EXPECT_EQ(parents[child], rank) << "tree " << tree << " of " << n;
          }
      EXPECT_EQ(edges, n - 1);
      EXPECT_EQ(std::count(parents, parents + n, -1), 1) << "one root";
    }
    int parent, none[2];
    EXPECT_EQ(trCommGetTree(ranks.comm(0), 2, &parent, none), trInvalidArgument);
    EXPECT_EQ(trCommGetTree(ranks.comm(0), 0, nullptr, none), trInvalidArgument);
    EXPECT_EQ(trCommGetRing(ranks.comm(0), nullptr), trInvalidArgument);
  }
}

TEST(MadeOperations, DestroyedBeforeTheGroupEnds) {
  RankGroup ranks(2);
  float values[2] = {1, 1};
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    const float scale = 3;
    trRedOp_t op;
    ASSERT_EQ(trRedOpCreatePreMulSum(&op, &scale, trFloat32, ranks.comm(rank)), trSuccess);
    EXPECT_EQ(trAllReduce(&values[rank], &values[rank], 1, trFloat32, op, ranks.comm(rank), nullptr), trSuccess);
    EXPECT_EQ(trRedOpDestroy(op, ranks.comm(rank)), trSuccess);
  }
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  EXPECT_EQ(values[0], 6);
  EXPECT_EQ(values[1], 6);
}

}  // namespace
}  // namespace treering::testing
