// Communicators made from others after a failure, and the shapes that a communicator tells.
#include <signal.h>

#include <atomic>
#include <set>
#include <thread>

#include "support/processes.h"
#include "support/ranks.h"

namespace treering::testing {
namespace {

trResult_t count_by_sum(trComm_t comm, int* sum) {
  *sum = 1;
  return trAllReduce(sum, sum, 1, trInt32, trSum, comm, nullptr);
}

class ShrinkAfterADeath : public ::testing::TestWithParam<std::pair<int, const char*>> {};

TEST_P(ShrinkAfterADeath, SurvivorsGoOn) {
  const auto [victim, transports] = GetParam();
  const int lost = victim;
  RankProcesses processes(4, [lost, transports = transports](int rank, const trUniqueId& id) {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.transports = transports;
    trComm_t comm, rest;
    TR_CHECK(trCommInitRankConfig(&comm, 4, id, rank, &config));
    int sum = 0;
    for (int i = 0; count_by_sum(comm, &sum) == trSuccess; ++i)
      if (i == 20) reached();
    TR_CHECK(trCommShrink(comm, &lost, 1, &rest, nullptr, rank % 2 == 0 ? TR_SHRINK_ABORT : 0));
    TR_CHECK(trCommDestroy(comm));
    TR_CHECK(count_by_sum(rest, &sum));
    TR_CHECK(trCommDestroy(rest));
    return sum;
  });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(lost), SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, rank == lost ? -1 : 3) << "rank " << rank << ": " << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(VictimsAndTransports, ShrinkAfterADeath,
                         ::testing::Values(std::pair{0, "shared-memory"}, std::pair{2, "shared-memory"},
                                           std::pair{0, "cma"}, std::pair{3, "cma"}));

TEST(Shrink, InAGroupAndAlone) {
  RankGroup ranks(3);
  const int lost[2] = {0, 1};
  trComm_t pair[2], alone = nullptr;
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(trCommShrink(ranks.comm(i + 1), lost, 1, &pair[i], nullptr, 0), trSuccess);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  int own = -1;
  EXPECT_EQ(trCommRank(pair[1], &own), trSuccess);
  EXPECT_EQ(own, 1);
  ASSERT_EQ(trCommShrink(ranks.comm(2), lost, 2, &alone, nullptr, 0), trSuccess);
  EXPECT_EQ(trCommCount(alone, &own), trSuccess);
  EXPECT_EQ(own, 1);
  for (trComm_t comm : {pair[0], pair[1], alone}) EXPECT_EQ(trCommDestroy(comm), trSuccess);
}

TEST(Shrink, WrongArguments) {
  RankGroup ranks(2);
  trComm_t made = ranks.comm(0);
  const int outside = 2, self = 0, other = 1;
  EXPECT_EQ(trCommShrink(ranks.comm(0), &outside, 1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &self, 1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &other, 1, &made, nullptr, 2), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &other, -1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), nullptr, 1, &made, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(ranks.comm(0), &other, 1, nullptr, nullptr, 0), trInvalidArgument);
  EXPECT_EQ(trCommShrink(nullptr, &other, 1, &made, nullptr, 0), trInvalidArgument);
}

TEST(Shrink, WaitsNoLongerThanTheDeadline) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = 2000;  // creating them has the same
  RankGroup ranks(3, config);
  trComm_t made = nullptr;
  const int lost = 2;
  EXPECT_EQ(trCommShrink(ranks.comm(0), &lost, 1, &made, nullptr, 0), trTimeout);
  EXPECT_NE(std::string(trGetLastError(nullptr)).find("rank 1 has not called it"), std::string::npos);
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
