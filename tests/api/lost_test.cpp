// SPDX-License-Identifier: Apache-2.0
// trCommGetLost(): who is lost in each way, and survivors that go on by it alone.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/attempts.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

std::vector<int> lost_of(trComm_t comm, int ranks) {
  std::vector<int> lost(static_cast<size_t>(ranks - 1), -1);
  int count = -1;
  EXPECT_EQ(trCommGetLost(comm, lost.data(), &count), trSuccess) << trGetLastError(nullptr);
  EXPECT_GE(count, 0);
  lost.resize(static_cast<size_t>(std::max(count, 0)));
  return lost;
}

TEST(Lost, NobodyWhereAllAreThere) {
  RankGroup ranks(3);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(lost_of(ranks.comm(rank), 3), std::vector<int>());
  // One that has destroyed its communicator takes part no more.
  EXPECT_EQ(trCommDestroy(ranks.take(1)), trSuccess);
  for (int rank : {0, 2}) EXPECT_EQ(lost_of(ranks.comm(rank), 3), std::vector<int>{1});
}

TEST(Lost, BadArgumentsAreNamed) {
  RankGroup ranks(2);
  int rank = 0, count = 0;
  EXPECT_EQ(trCommGetLost(ranks.comm(0), nullptr, &count), trInvalidArgument);
  EXPECT_NE(std::string(trGetLastError(nullptr)).find("trCommGetLost: ranks"), std::string::npos);
  EXPECT_EQ(trCommGetLost(ranks.comm(0), &rank, nullptr), trInvalidArgument);
  EXPECT_NE(std::string(trGetLastError(nullptr)).find("trCommGetLost: count"), std::string::npos);
  EXPECT_EQ(trCommGetLost(nullptr, &rank, &count), trInvalidArgument);
}

// Two die one after the other, the second while the others may be in their shrink: each survivor asks who is lost, and
// calls again where the others know of more or fewer.
TEST_IN_THREE_ATTEMPTS(Lost, SurvivorsGoOnByIt) {
  constexpr int kRanks = 5;
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, rest = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    TR_CHECK(trBarrier(comm, nullptr));
    reached();
    {  // asked by another thread meanwhile
      std::jthread asks([comm](const std::stop_token& stop) {
        while (!stop.stop_requested()) (void)lost_of(comm, kRanks);
      });
      while (trBarrier(comm, nullptr) == trSuccess) continue;
    }
    trResult_t result = trSuccess;
    do {
      const std::vector<int> lost = lost_of(comm, kRanks);
      result = trCommShrink(comm, lost.data(), static_cast<int>(lost.size()), &rest, nullptr, TR_SHRINK_ABORT);
    } while (result == trRemoteError || result == trInvalidUsage);
    TR_CHECK(result);
    int ranks = 0;
    TR_CHECK(trCommCount(rest, &ranks));
    TR_CHECK(trBarrier(rest, nullptr));
    TR_CHECK(trCommDestroy(rest));
    TR_CHECK(trCommDestroy(comm));
    return ::testing::Test::HasFailure() ? -1 : ranks;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  for (int victim : {3, 0}) ASSERT_EQ(kill(processes.pid(victim), SIGKILL), 0);
  for (int rank : {1, 2, 4}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 3) << "rank " << rank << ": " << result.output;
  }
}

// At the deadline; once it runs it is none.
TEST(Lost, OneThatIsStoppedUntilItRuns) {
  Gate done;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    done.inherit();
    trComm_t comm = nullptr;
    const trConfig_t config = config_with_timeout(4000);
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    TR_CHECK(trBarrier(comm, nullptr));
    reached();
    while (trBarrier(comm, nullptr) == trSuccess) continue;
    if (rank == 0) {
      EXPECT_EQ(lost_of(comm, 2), std::vector<int>{1});
      reached();
      EXPECT_TRUE(soon([&] { return lost_of(comm, 2).empty(); }, std::chrono::seconds(30)));
      reached();
    }
    done.wait();
    TR_CHECK(trCommDestroy(comm));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  for (int rank : {0, 1}) ASSERT_TRUE(processes.wait_until_reached(rank));
  processes.stop(1);
  ASSERT_TRUE(processes.wait_until_reached(0));
  ASSERT_EQ(kill(processes.pid(1), SIGCONT), 0);
  EXPECT_TRUE(processes.wait_until_reached(0, std::chrono::seconds(60)));
  done.open();
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
