// SPDX-License-Identifier: Apache-2.0
// Ranks that die, abort or revoke; handles and pointers that are wrong.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "shim/helpers.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

struct Loss {
  int victim;
  const char* transports;
};
std::ostream& operator<<(std::ostream& out, const Loss& loss) {
  return out << "rank " << loss.victim << " by " << loss.transports;
}

class ShrinkAfterADeath : public ::testing::TestWithParam<Loss> {};

// Calls until one fails, then goes on without the rank that is dead.
int outlive(int rank, int victim, const ncclUniqueId& id) {
  ncclComm_t comm, rest;
  NCCL_CHECK(ncclCommInitRank(&comm, 4, id, rank));
  ncclResult_t result = ncclSuccess;
  for (int i = 0, sum = 0; result == ncclSuccess; ++i) {
    result = count_by_sum(comm, &sum);
    if (i == 20) reached();
  }
  RANK_EXPECT(result == ncclRemoteError);
  ncclResult_t state;
  NCCL_CHECK(ncclCommGetAsyncError(comm, &state));
  RANK_EXPECT(state == ncclRemoteError);
  NCCL_CHECK(ncclCommShrink(comm, &victim, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
  int own = -1, sum = 0;
  NCCL_CHECK(ncclCommUserRank(rest, &own));
  RANK_EXPECT(own == rank - (rank > victim));
  NCCL_CHECK(count_by_sum(rest, &sum));
  RANK_EXPECT(sum == 3);
  NCCL_CHECK(ncclCommAbort(comm));
  NCCL_CHECK(count_by_sum(rest, &sum));
  NCCL_CHECK(ncclCommDestroy(rest));
  return 0;
}

TEST_P(ShrinkAfterADeath, TheOthersGoOn) {
  const Loss loss = GetParam();
  RankProcesses processes(4, [loss](int rank, const trUniqueId& id) {
    setenv("TREERING_TRANSPORTS", loss.transports, 1);
    return outlive(rank, loss.victim, as_nccl(id));
  });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(loss.victim), SIGKILL);
  for (int rank = 0; rank < 4; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.signal, rank == loss.victim ? SIGKILL : 0) << "rank " << rank;
    EXPECT_EQ(result.exit_code, rank == loss.victim ? -1 : 0) << "rank " << rank << ": " << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShrinkAfterADeath,
                         ::testing::Values(Loss{0, "shared-memory"}, Loss{1, "shared-memory"}, Loss{3, "cma"},
                                           Loss{0, "cma"}));

TEST(Shrink, SecondDeathIsNamedAndASecondShrinkWorks) {
  RankProcesses processes(4, [](int rank, const trUniqueId& id) {
    ncclComm_t comm, rest;
    NCCL_CHECK(ncclCommInitRank(&comm, 4, as_nccl(id), rank));
    int sum = 0;
    NCCL_CHECK(count_by_sum(comm, &sum));
    reached();
    if (rank >= 2)
      for (;;) pause();
    while (count_by_sum(comm, &sum) == ncclSuccess) continue;
    int lost[2] = {2, 3};
    RANK_EXPECT(ncclCommShrink(comm, lost, 1, &rest, nullptr, NCCL_SHRINK_ABORT) == ncclRemoteError);
    RANK_EXPECT(std::string(ncclGetLastError(nullptr)).find("rank 3 (pid") != std::string::npos);
    NCCL_CHECK(ncclCommShrink(comm, lost, 2, &rest, nullptr, NCCL_SHRINK_ABORT));
    NCCL_CHECK(count_by_sum(rest, &sum));
    RANK_EXPECT(sum == 2);
    NCCL_CHECK(ncclCommDestroy(rest));
    NCCL_CHECK(ncclCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  for (int rank : {2, 3}) kill(processes.pid(rank), SIGKILL);
  for (int rank : {0, 1}) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

// How often a thread of this process has given its core away, or lost it.
long switches_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  long all = 0, count = 0;
  for (std::string word; file >> word;)
    if (word.find("ctxt_switches:") != std::string::npos && file >> count) all += count;
  return all;
}

// Ends a call that waits for a rank which never makes it.
void end_a_waiting_call(const std::function<void(ncclComm_t)>& end, ncclResult_t expected) {
  AllRanks ranks(2);
  std::atomic<pid_t> waiting{0};
  std::thread waiter([&] {
    int sum = 0;
    waiting = gettid();
    EXPECT_EQ(count_by_sum(ranks[0], &sum), expected);
  });
  // A call that is under way looks like none here, but its thread gives its core away again and again.
  while (waiting == 0) std::this_thread::yield();
  const long before = switches_of(waiting);
  EXPECT_TRUE(soon([&] { return switches_of(waiting) >= before + 20; }));
  ncclResult_t state = ncclInternalError;
  EXPECT_NCCL(ncclCommGetAsyncError(ranks[0], &state)) << "while another thread is in a call";
  EXPECT_EQ(state, ncclSuccess);
  end(ranks[0]);
  waiter.join();
  EXPECT_NCCL(ncclCommGetAsyncError(ranks[1], &state));
  EXPECT_EQ(state, ncclRemoteError) << "the other rank is told";
  int sum = 0;
  EXPECT_EQ(count_by_sum(ranks[1], &sum), ncclRemoteError);
  ncclResult_t of_ended = ncclCommGetAsyncError(ranks[0], &state);
  if (of_ended == ncclInvalidArgument) ranks[0] = nullptr;  // the abort released it
}

TEST(Abort, EndsACallOfAnotherThread) {
  end_a_waiting_call([](ncclComm_t comm) { EXPECT_NCCL(ncclCommAbort(comm)); }, ncclRemoteError);
}

TEST(Revoke, EndsACallOfAnotherThread) {
  end_a_waiting_call([](ncclComm_t comm) { EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT)); }, ncclRemoteError);
}

TEST(Revoke, LeavesSplitShrinkAndDestroy) {
  with_ranks(3, [](int rank, ncclComm_t comm) {
    EXPECT_EQ(ncclCommRevoke(comm, 1), ncclInvalidArgument);
    ASSERT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    int sum = 0;
    EXPECT_EQ(count_by_sum(comm, &sum), ncclInvalidUsage);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidUsage);
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
    for (int round = 0; round < 2; ++round) {
      ncclComm_t same = nullptr;
      ASSERT_NCCL(ncclCommSplit(comm, 0, -rank, &same, nullptr));
      EXPECT_NCCL(count_by_sum(same, &sum));
      EXPECT_EQ(sum, 3);
      EXPECT_NCCL(ncclCommDestroy(same));
    }
    int last = 2;
    ncclComm_t rest = nullptr;
    if (rank == last) return;
    ASSERT_NCCL(ncclCommShrink(comm, &last, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT));
    EXPECT_NCCL(count_by_sum(rest, &sum));
    EXPECT_EQ(sum, 2);
    EXPECT_NCCL(ncclCommDestroy(rest));
  });
}

TEST(Handles, NullAndDestroyedAreErrors) {
  ncclComm_t alive, dead;
  ASSERT_NCCL(ncclCommInitAll(&alive, 1, nullptr));
  ASSERT_NCCL(ncclCommInitAll(&dead, 1, nullptr));
  ASSERT_NCCL(ncclCommDestroy(dead));
  int unrelated[16] = {};
  for (ncclComm_t comm : {static_cast<ncclComm_t>(nullptr), dead, reinterpret_cast<ncclComm_t>(unrelated)}) {
    int number = 0;
    ncclResult_t state;
    ncclComm_t child;
    ncclRedOp_t op;
    void* handle;
    EXPECT_EQ(ncclCommCount(comm, &number), ncclInvalidArgument);
    EXPECT_EQ(ncclCommUserRank(comm, &number), ncclInvalidArgument);
    EXPECT_EQ(ncclCommCuDevice(comm, &number), ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRevoke(comm, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comm, &number, 1, &child, nullptr, 0), ncclInvalidArgument);
    EXPECT_EQ(count_by_sum(comm, &number), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(&number, 1, ncclInt32, 0, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(comm, &number, 4, &handle), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDeregister(comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommWindowDeregister(comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, &number, ncclInt32, ncclScalarHostImmediate, comm), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(comm)), "");
    EXPECT_EQ(ncclCommDestroy(comm), comm == nullptr ? ncclSuccess : ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), comm == nullptr ? ncclSuccess : ncclInvalidArgument);
  }
  EXPECT_EQ(ncclCommCount(alive, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommUserRank(alive, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCuDevice(alive, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGetAsyncError(alive, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGetVersion(nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclMemAlloc(nullptr, 8), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommDestroy(alive));
}

TEST(Arguments, AreNamed) {
  AllRanks ranks(2);
  int value = 1;
  auto expect = [&](ncclResult_t result, const char* words) {
    EXPECT_EQ(result, ncclInvalidArgument) << words;
    EXPECT_NE(std::string(ncclGetLastError(ranks[0])).find(words), std::string::npos) << ncclGetLastError(ranks[0]);
  };
  ncclComm_t comm = ranks[0], child = nullptr;
  expect(ncclAllReduce(nullptr, &value, 1, ncclInt32, ncclSum, comm, nullptr), "sendbuff is NULL");
  expect(ncclAllReduce(&value, nullptr, 1, ncclInt32, ncclSum, comm, nullptr), "recvbuff is NULL");
  expect(ncclAllReduce(&value, &value, 1, ncclNumTypes, ncclSum, comm, nullptr), "datatype is 12");
  expect(ncclAllReduce(&value, &value, 1, ncclInt32, ncclNumOps, comm, nullptr), "op is 5");
  ncclRedOp_t made = ncclSum;
  ASSERT_EQ(ncclRedOpCreatePreMulSum(&made, &value, ncclInt32, ncclScalarHostImmediate, comm), ncclSuccess);
  expect(ncclAllReduce(&value, &value, 1, ncclFloat32, made, comm, nullptr), "was made for datatype int32, not float");
  EXPECT_EQ(ncclRedOpDestroy(made, comm), ncclSuccess);
  expect(ncclBcast(&value, 1, ncclInt32, 2, comm, nullptr), "root is 2");
  expect(ncclSend(&value, 1, ncclInt32, -1, comm, nullptr), "peer is -1");
  expect(ncclCommSplit(comm, -7, 0, &child, nullptr), "color is -7");
  EXPECT_EQ(ncclCommSplit(ranks[1], -8, 0, &child, nullptr), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("color is -8"), std::string::npos) << "the process's last";
  EXPECT_NE(std::string(ncclGetLastError(comm)).find("color is -7"), std::string::npos) << "the communicator's last";
  for (int result = 0; result <= ncclNumResults; ++result)
    EXPECT_STRNE(ncclGetErrorString(static_cast<ncclResult_t>(result)), "");
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, 22809);
}

}  // namespace
}  // namespace treering::testing
