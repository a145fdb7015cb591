// SPDX-License-Identifier: Apache-2.0
// Ranks that reach one another by UCX alone, through the C API: in one process, and in several. The module is found as a
// program finds it.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "transport/module_ranks.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

class UcxRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("TREERING_TRANSPORTS", "ucx", 1);
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
  }
  void TearDown() override {
    for (const char* name : {"TREERING_TRANSPORTS", "UCX_TLS", "UCX_NET_DEVICES"}) unsetenv(name);
  }
};

TEST_F(UcxRanks, RunCollectives) {
  run_ranks(4, [](trComm_t comm, int rank, int ranks) { run_collectives(comm, rank, ranks, "ucx"); });
}

TEST_F(UcxRanks, RunCollectivesBetweenProcesses) {
  expect_all_succeed(3, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    run_collectives(comm, rank, 3, "ucx");
    TR_CHECK(trCommDestroy(comm));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
}

TEST_F(UcxRanks, SplitAndLeave) { split_and_leave(); }

TEST_F(UcxRanks, LastMessagesArrive) { send_last_messages(); }

// Every survivor hears of a killed rank long before the deadline.
TEST_F(UcxRanks, AKilledRankIsNamedByAllOthers) {
  constexpr int kRanks = 4;
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    trConfig_t config = config_with_timeout(60'000);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
    std::vector<float> values(200'000, 1.0f);
    for (int i = 0;; ++i) {
      const trResult_t result =
          trAllReduce(values.data(), values.data(), values.size(), trFloat32, trMax, comm, nullptr);
      if (i == 20) reached();
      if (result == trSuccess) continue;
      say(trGetLastError(comm));
      trCommDestroy(comm);
      return result == trRemoteError ? 0 : 1;
    }
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(2), SIGKILL);
  for (const int rank : {0, 1, 3}) {
    const RankResult result = processes.wait(rank, std::chrono::seconds(30));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("rank 2 (pid " + std::to_string(processes.pid(2))), std::string::npos)
        << result.output;
  }
}

// Where UCX has nothing that reports the failure of a peer, the pair takes the next transport.
TEST_F(UcxRanks, FallBackToTcp) {
  setenv("TREERING_TRANSPORTS", "ucx,tcp", 1);
  setenv("UCX_TLS", "posix", 1);
  expect_tcp();
}

TEST_F(UcxRanks, WithoutAnotherTransportTheErrorSaysWhatToCheck) {
  setenv("UCX_TLS", "posix", 1);
  trUniqueId id;
  EXPECT_SUCCESS(trGetUniqueId(&id));
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      trComm_t comm = nullptr;
      EXPECT_NE(trCommInitRank(&comm, 2, id, rank), trSuccess);
      errors[rank] = trGetLastError(nullptr);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(errors[0].find("UCX_TLS"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace treering::testing
