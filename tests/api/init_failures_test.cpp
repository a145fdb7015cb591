// SPDX-License-Identifier: Apache-2.0
// Failures while a communicator is created.
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "support/attempts.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

// Creates a communicator that is not used; says the error, and returns its code + 10.
int create(int rank, int ranks, const trUniqueId& id, int timeout_ms) {
  trConfig_t config = config_with_timeout(timeout_ms);
  trComm_t comm = nullptr;
  const trResult_t result = trCommInitRankConfig(&comm, ranks, id, rank, &config);
  say(trGetLastError(nullptr));
  return 10 + result;
}

TEST(Init, DeadRankIsNamedByTheOthers) {
  Gate rank_0_ends;
  RankProcesses processes(3, [&](int rank, const trUniqueId& id) {
    rank_0_ends.inherit();
    if (rank == 2) return 0;
    const int code = create(rank, 3, id, 4000);
    // Its process made the id, and rank 1 may come when rank 0's creation has failed already.
    if (rank == 0) rank_0_ends.wait();
    return code;
  });
  const RankResult other = processes.wait(1, std::chrono::seconds(20));
  rank_0_ends.open();
  const RankResult maker = processes.wait(0, std::chrono::seconds(20));
  for (const RankResult& result : {maker, other}) {
    EXPECT_EQ(result.exit_code, 10 + trTimeout) << result.output;
    EXPECT_NE(result.output.find("rank 2"), std::string::npos) << result.output;
  }
}

TEST(Init, WhoIsMissingIsToldBeforeTheDeadline) {
  char file[] = "/tmp/treering-log-XXXXXX";
  const int log = mkstemp(file);
  RankProcesses processes(3, [&](int rank, const trUniqueId& id) {
    char text[4096] = "";
    // Told after 10 s.
    for (int i = 0; rank == 2 && std::strstr(text, "for rank 2 of 3 ranks; the deadline") == nullptr && i < 4000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (pread(log, text, sizeof text - 1, 0) < 0) return 1;
    }
    say(text);
    setenv("TREERING_DEBUG_FILE", file, 1);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  const RankResult late = processes.wait(2, std::chrono::seconds(90));
  EXPECT_EQ(late.exit_code, 0) << late.output;
  EXPECT_NE(late.output.find("has been waiting for 1"), std::string::npos) << late.output;
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  close(log);
  unlink(file);
}

// Rank 1 ends, or never comes. Rank 2 comes when rank 0's creation has failed and its process, which made the id, ends.
class ARankThatComesLate : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Init, ARankThatComesLate, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "AfterAnEnd" : "AfterTheDeadline"; });

TEST_P_IN_THREE_ATTEMPTS(ARankThatComesLate, HearsWhyThoughTheMakerOfTheIdEnds) {
  const bool ends = GetParam();
  Gate rank_0_ends;
  RankProcesses processes(3, [&](int rank, const trUniqueId& id) -> int {
    rank_0_ends.inherit();
    if (rank == 1 && !ends) pause();
    if (rank == 1)
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        _exit(0);
      }).detach();
    if (rank == 2) rank_0_ends.wait();
    const int code = create(rank, 3, id, ends ? 10'000 : 1'000);
    if (rank == 0) reached();
    std::exit(code);  // as a program ends
  });
  const std::string culprit = ends ? "rank 1 (pid " + std::to_string(processes.pid(1)) : "missing: rank 1";
  EXPECT_TRUE(processes.wait_until_reached(0));
  usleep(100'000);  // a process that does not wait has ended by then
  rank_0_ends.open();
  const RankResult late = processes.wait(2, std::chrono::seconds(20));
  EXPECT_EQ(late.exit_code, 10 + (ends ? trRemoteError : trTimeout)) << late.output;
  EXPECT_NE(late.output.find(culprit), std::string::npos) << late.output;
}

TEST(Init, RanksThatDisagreeAreTold) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) { return create(rank, 2, id, 20'000 + rank); });
  for (int rank : {0, 1}) {
    RankResult result = processes.wait(rank, std::chrono::seconds(20));
    EXPECT_EQ(result.exit_code, 10 + trInvalidUsage) << result.output;
    EXPECT_NE(result.output.find("timeout_ms (TREERING_TIMEOUT)=20 s"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("timeout_ms (TREERING_TIMEOUT)=20.001 s"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
