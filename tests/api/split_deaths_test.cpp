// SPDX-License-Identifier: Apache-2.0
// A rank that dies in the middle of trCommSplit: after the exchanges, before it meets the others of its new
// communicator, where no rank has heard of it yet.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "support/open_sockets.h"
#include "support/processes.h"
#include "support/seccomp.h"
#include "support/texts.h"
#include "support/waiting.h"

namespace {

// Processes, where this one is to see the end of the first no earlier than that of the second; else -1.
int first_to_end = -1, second_to_end = -1;
thread_local bool ends_at_random_bytes = false;
thread_local int draws = 0;
// So often this thread does not see that a process has ended.
thread_local int blind_looks = 0;

int poll_one(int fd, int timeout_ms) {
  pollfd entry{fd, POLLIN, 0};
  return static_cast<int>(syscall(SYS_poll, &entry, 1, timeout_ms));
}

}  // namespace

// Stands in for the C library's, by which the library looks whether a process has ended.
extern "C" __attribute__((visibility("default"))) int poll(pollfd* entries, nfds_t count, int timeout_ms) {
  constexpr int kTimeoutMs = 30000;
  if (entries != nullptr && count == 1 && timeout_ms == 0 && blind_looks > 0) return blind_looks--, 0;
  if (first_to_end >= 0 && poll_one(first_to_end, 0) > 0) poll_one(second_to_end, kTimeoutMs);
  return static_cast<int>(syscall(SYS_poll, entries, count, timeout_ms));
}

// Stands in for libsodium's. A rank that makes no id needs them for the second exchange of a split.
extern "C" __attribute__((visibility("default"))) void randombytes_buf(void* const buffer, const size_t bytes) {
  if (ends_at_random_bytes) raise(SIGKILL);
  ++draws;
  if (getrandom(buffer, bytes, 0) != static_cast<ssize_t>(bytes)) abort();  // whole up to 256 bytes
}

namespace treering::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kAtOnce = 8;  // seconds, also on a busy machine

// By that it would reach the rendezvous root, or others would reach it there. False where the kernel allows no filter.
bool end_at_first_socket() {
  return filter_system_calls({SYS_socket, SYS_accept4}, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW, true);
}

// A descriptor of each rank's process, which becomes readable when the process ends.
trResult_t open_processes(trComm_t comm, int* descriptors) {
  int ranks = 0;
  trResult_t result = trCommCount(comm, &ranks);
  std::vector<int32_t> pids(static_cast<size_t>(ranks));
  const int32_t own = getpid();
  if (result == trSuccess) result = trAllGather(&own, pids.data(), 1, trInt32, comm, nullptr);
  for (const int32_t pid : pids) *descriptors++ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return result;
}

class DeathInSplit : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Split, DeathInSplit, ::testing::Values(1, 2));

TEST_P(DeathInSplit, IsNoticedAtOnce) {
  constexpr int kRanks = 3;
  const int victim = GetParam();
  setenv("TREERING_TIMEOUT", "60", 1);
  RankProcesses processes(kRanks, [victim](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == victim && !end_at_first_socket()) return 77;
    const auto begin = Clock::now();
    const trResult_t result = trCommSplit(comm, 0, -rank, &part, nullptr);
    say(std::to_string(std::chrono::duration<double>(Clock::now() - begin).count()) + " " + trGetLastError(comm));
    return result == trRemoteError ? 0 : 1;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    if (rank == victim) {
      if (result.exit_code == 77) GTEST_SKIP() << "the kernel allows no filters of system calls";
      EXPECT_EQ(result.signal, SIGSYS) << result.output;
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_LT(std::atof(result.output.c_str()), kAtOnce) << result.output;
    const std::string culprit = "rank " + std::to_string(victim) + " (pid " + std::to_string(processes.pid(victim));
    EXPECT_NE(result.output.find(culprit), std::string::npos) << result.output;
  }
}

// The first rank of the new communicator has made the rendezvous root, and rank 0 dies before it has heard of that.
TEST(DeathInSplit, LeavesNoRendezvousRootBehind) {
  setenv("TREERING_TIMEOUT", "600", 1);
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    const size_t before = sockets_of_this_process();
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    TR_CHECK(trBarrier(comm, nullptr));
    ends_at_random_bytes = rank == 0;
    const int before_split = draws;
    const trResult_t result = trCommSplit(comm, 0, -rank, &part, nullptr);
    say(trGetLastError(comm));
    if (draws < before_split + 2) return 3;  // it has made no id
    TR_CHECK(trCommDestroy(comm));
    if (!soon([before] { return sockets_of_this_process() <= before; })) return 2;
    return result == trRemoteError ? 0 : 1;
  });
  EXPECT_EQ(processes.wait(0).signal, SIGKILL);
  const RankResult result = processes.wait(1, std::chrono::seconds(60));
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

// Rank 2 finds the death of rank 1 and ends; rank 0 sees both ends at once, and names the first cause, too.
TEST(DeathInSplit, IsNamedAlsoWhereItsMessengerHasEnded) {
  constexpr int kRanks = 3;
  constexpr int kVictim = 1, kMessenger = 2;
  setenv("TREERING_TIMEOUT", "60", 1);
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    std::array<int, kRanks> ends{};
    TR_CHECK(open_processes(comm, ends.data()));
    if (rank == 0) {
      second_to_end = ends[kMessenger];
      first_to_end = ends[kVictim];
    }
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == kVictim && !end_at_first_socket()) return 77;
    const trResult_t result = trCommSplit(comm, 0, -rank, &part, nullptr);
    say(trGetLastError(comm));
    return result == trRemoteError ? 0 : 1;
  });
  const RankResult victim = processes.wait(kVictim);
  if (victim.exit_code == 77) GTEST_SKIP() << "the kernel allows no filters of system calls";
  const RankResult result = processes.wait(0);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("rank 1 (pid " + std::to_string(processes.pid(kVictim)) + ")"), std::string::npos)
      << result.output;
}

// Rank 2 shrinks and waits for rank 0, which does not call; meanwhile rank 1 dies.
TEST(DeathInShrink, IsNoticedWhileAnotherRankIsWaitedFor) {
  constexpr int kRanks = 3;
  setenv("TREERING_TIMEOUT", "60", 1);
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    TR_CHECK(trBarrier(comm, nullptr));
    reached();
    if (rank != 2) pause();
    const trResult_t result = trCommShrink(comm, nullptr, 0, &part, nullptr, 0);
    say(trGetLastError(comm));
    return result == trRemoteError ? 0 : 1;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(1), SIGKILL);
  const RankResult result = processes.wait(2, std::chrono::seconds(40));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("rank 1 (pid " + std::to_string(processes.pid(1))), std::string::npos) << result.output;
}

// Rank 3 has died; rank 1 dies before the shrink without rank 3. Rank 0 is told, and is gone when rank 2 comes to it.
class DeathBeforeShrink : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Leaver, DeathBeforeShrink, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Destroys" : "Exits"; });

TEST_P(DeathBeforeShrink, IsNamedAlsoWhereASurvivorHasLeftBecauseOfIt) {
  constexpr int kRanks = 4;
  static constexpr int kLeaver = 0, kDead = 1, kExcluded = 3;
  setenv("TREERING_TIMEOUT", "60", 1);
  RankProcesses processes(kRanks, [destroys = GetParam()](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    std::array<int, kRanks> ends{};
    TR_CHECK(open_processes(comm, ends.data()));
    TR_CHECK(trBarrier(comm, nullptr));  // all have them
    reached();
    if (rank == kExcluded) pause();
    while (trBarrier(comm, nullptr) == trSuccess) continue;
    reached();
    if (rank == kDead) pause();
    if (poll_one(ends[rank == kLeaver ? kDead : kLeaver], 30000) != 1) return 2;
    const trResult_t result = trCommShrink(comm, &kExcluded, 1, &part, nullptr, 0);
    say(trGetLastError(comm));
    if (result != trRemoteError) return 1;
    if (rank == kLeaver && !destroys) _exit(0);
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(kExcluded), SIGKILL);
  for (int rank = 0; rank < kExcluded; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(kDead), SIGKILL);
  for (const int rank : {kLeaver, 2}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    // Where the ranks share no memory, that rank 0's process has ended may be heard first. It is true.
    if (std::getenv("TREERING_TRANSPORTS") != nullptr && !GetParam() && rank == 2 &&
        result.output.find("rank 0 (pid " + std::to_string(processes.pid(kLeaver))) == 0)
      continue;
    EXPECT_NE(result.output.find("rank 1 (pid " + std::to_string(processes.pid(kDead))), std::string::npos)
        << "rank " << rank << ": " << result.output;
  }
}

// Rank 1 has ended its shrink because of a death, and has called the next one, when rank 0 comes to the first. Rank 0 sees
// the death some looks later, and then calls the next one, too.
TEST(DeathBeforeShrink, IsNamedWhereAnotherRankHasGoneOn) {
  constexpr int kRanks = 4, kBlindLooks = 12;
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    constexpr int kDead[] = {2, 3};
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &go, nullptr);
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    TR_CHECK(trBarrier(comm, nullptr));
    reached();
    int sent = 0;
    sigwait(&go, &sent);
    if (rank == 0) blind_looks = kBlindLooks;
    if (trCommShrink(comm, kDead, 1, &part, nullptr, 0) != trRemoteError) return say(trGetLastError(comm)), 1;
    say(trGetLastError(comm));
    std::jthread teller;
    if (rank == 1) teller = when_in_a_call(comm, reached);
    TR_CHECK(trCommShrink(comm, kDead, 2, &part, nullptr, 0));
    TR_CHECK(trBarrier(part, nullptr));
    TR_CHECK(trCommDestroy(
        part));  // one that ends at once may be taken for dead by the other, which is still in the barrier
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  for (const int rank : {2, 3}) kill(processes.pid(rank), SIGKILL);
  kill(processes.pid(1), SIGUSR1);
  ASSERT_TRUE(processes.wait_until_reached(1)) << processes.wait(1, std::chrono::seconds(1)).output;
  kill(processes.pid(0), SIGUSR1);
  for (const int rank : {0, 1}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("rank 3 (pid " + std::to_string(processes.pid(3))), std::string::npos)
        << result.output;
  }
}

// Rank 0 destroys its communicator because rank 2 has revoked it; rank 1 comes to a split that needs rank 0.
TEST(SplitAfterAFailure, NamesTheFirstCauseWhereARankHasLeftSince) {
  constexpr int kRanks = 3;
  constexpr int kLeaver = 0, kRevoker = 2;
  setenv("TREERING_TIMEOUT", "60", 1);
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, part = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    std::array<int, kRanks> ends{};
    TR_CHECK(open_processes(comm, ends.data()));
    if (rank == kRevoker) {
      TR_CHECK(trBarrier(comm, nullptr));  // the others have them, too
      TR_CHECK(trCommRevoke(comm));
    }
    while (trBarrier(comm, nullptr) == trSuccess) continue;
    if (rank == kLeaver) {
      TR_CHECK(trCommDestroy(comm));
      return 0;
    }
    if (poll_one(ends[kLeaver], 30000) != 1) return 2;
    const trResult_t result = trCommSplit(comm, 0, 0, &part, nullptr);
    say(trGetLastError(comm));
    return result == trRemoteError ? 0 : 1;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    if (rank == kLeaver) continue;
    EXPECT_EQ(result.output.find("rank 2 (pid " + std::to_string(processes.pid(kRevoker))), 0u) << result.output;
    EXPECT_EQ(without_pids(result.output).find("rank 2 revoked the communicator"), 0u) << result.output;
    EXPECT_EQ(result.output.find("destroyed"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
