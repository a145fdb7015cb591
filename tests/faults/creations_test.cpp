// SPDX-License-Identifier: Apache-2.0
// Communicators created over TCP, one after the other, while four busy processes load the machine: none fails.
// 60 of them, 10,000 in tests/run --long; TREERING_CREATIONS sets another number.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "support/processes.h"
#include "support/sanitized.h"

namespace treering::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 4;
constexpr int kBusy = 4;
constexpr int kCreations = kSanitized ? 20 : 60;
constexpr int kCreationsOfLong = 10'000;

class BusyProcesses {
 public:
  BusyProcesses() {
    const pid_t parent = getpid();
    for (int i = 0; i < kBusy; ++i) {
      pids_.push_back(fork());
      if (pids_.back() != 0) continue;
      while (getppid() == parent) continue;
      _exit(0);  // the test was killed
    }
  }
  ~BusyProcesses() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> pids_;
};

// In turns from an id and from the communicator that is there.
int create_again_and_again(int rank, const trUniqueId& first, int creations) {
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRank(&comm, kRanks, first, rank));
  double longest = 0;
  for (int i = 0; i < creations; ++i) {
    trUniqueId id{};
    trComm_t made = nullptr;
    const bool from_id = i % 2 == 0;
    if (from_id && rank == 0) TR_CHECK(trGetUniqueId(&id));
    if (from_id) TR_CHECK(trBroadcast(&id, &id, sizeof id, trUint8, 0, comm, nullptr));
    const auto begin = Clock::now();
    const trResult_t result =
        from_id ? trCommInitRank(&made, kRanks, id, rank) : trCommSplit(comm, 0, -rank, &made, nullptr);
    if (result != trSuccess) return say("creation " + std::to_string(i) + ": " + trGetLastError(comm)), 101;
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
    float sum = 1;
    TR_CHECK(trAllReduce(&sum, &sum, 1, trFloat32, trSum, made, nullptr));
    if (sum != kRanks) return say("a wrong sum"), 102;
    TR_CHECK(trCommDestroy(made));
  }
  if (rank == 0) say("the longest took " + std::to_string(longest) + " s\n");
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(Creations, OverTcpOnABusyMachineNeverFail) {
  const char* const chosen = std::getenv("TREERING_CREATIONS");
  const int usual = std::getenv("TREERING_LONG_TESTS") != nullptr ? kCreationsOfLong : kCreations;
  const int creations = chosen != nullptr ? std::atoi(chosen) : usual;
  ASSERT_GT(creations, 0) << "TREERING_CREATIONS is " << chosen;
  setenv("TREERING_TRANSPORTS", "tcp", 1);
  const BusyProcesses busy;
  const auto begin = Clock::now();
  RankProcesses processes(kRanks, [creations](int rank, const trUniqueId& id) {
    setenv("TREERING_HOSTID", ("host-" + std::to_string(rank)).c_str(), 1);  // hosts measure what is between them
    return create_again_and_again(rank, id, creations);
  });
  for (const RankResult& result : processes.wait_all(std::chrono::seconds(120 + 2 * creations))) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::printf("%s", result.output.c_str());
  }
  std::printf("%d creations in %.0f s\n", creations, std::chrono::duration<double>(Clock::now() - begin).count());
  unsetenv("TREERING_TRANSPORTS");
}

}  // namespace
}  // namespace treering::testing
