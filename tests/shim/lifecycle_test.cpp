// SPDX-License-Identifier: Apache-2.0
// Communicators: made in every way, split, shrunk, non-blocking, finalized, and what their handles say.
#include <sys/mman.h>

#include "nccl_device.h"
#include "shim/helpers.h"

namespace treering::testing {
namespace {

TEST(Init, AllRanksWithDevices) {
  const int devices[3] = {4, 2, 7};
  ncclComm_t comms[3];
  ASSERT_NCCL(ncclCommInitAll(comms, 3, devices));
  for (int rank = 0; rank < 3; ++rank) {
    int device = -1, own = -1, count = -1;
    EXPECT_NCCL(ncclCommCuDevice(comms[rank], &device));
    EXPECT_NCCL(ncclCommUserRank(comms[rank], &own));
    EXPECT_NCCL(ncclCommCount(comms[rank], &count));
    EXPECT_EQ(device, devices[rank]);
    EXPECT_EQ(own, rank);
    EXPECT_EQ(count, 3);
  }
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  const int twice[2] = {1, 1};
  EXPECT_EQ(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
  setenv("NCCL_ALGO", "nothing", 1);
  EXPECT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclInvalidArgument);
  unsetenv("NCCL_ALGO");
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "its group is over";
  EXPECT_EQ(ncclCommInitAll(comms, 0, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(nullptr, 1, nullptr), ncclInvalidArgument);
}

// A count that nothing can have is refused before the array that should have so many is read or written.
TEST(Init, CountsBeforeArrays) {
  constexpr size_t kPage = 4096;
  constexpr int kMany = 1 << 30;
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(pages + kPage, kPage, PROT_NONE), 0);
  auto* const comms = reinterpret_cast<ncclComm_t*>(pages + kPage - sizeof(ncclComm_t));
  auto* const numbers = reinterpret_cast<int*>(pages + kPage - sizeof(int));
  EXPECT_EQ(ncclCommInitAll(comms, kMany, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitAll(comms, kMany, numbers), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("ndev is 1073741824"), std::string::npos)
      << ncclGetLastError(nullptr);
  ncclComm_t live, rest = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&live, 1, nullptr));
  EXPECT_EQ(ncclCommShrink(live, numbers, kMany, &rest, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
  EXPECT_EQ(ncclCommShrink(live, numbers, 2, &rest, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("excludeRanksCount is 2; the communicator has 1 ranks"),
            std::string::npos)
      << ncclGetLastError(nullptr);
  EXPECT_NCCL(ncclCommDestroy(live));
  munmap(pages, 2 * kPage);
}

TEST(Init, RanksOfOneThreadInAGroup) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comms[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclCommInitRank(&comms[rank], 2, id, rank));
  int rank = 0;
  EXPECT_EQ(ncclCommUserRank(comms[0], &rank), ncclInvalidUsage) << "not yet";
  ASSERT_NCCL(ncclGroupEnd());
  int sums[2] = {1, 1};
  ASSERT_NCCL(ncclGroupStart());
  for (int i = 0; i < 2; ++i) EXPECT_NCCL(ncclAllReduce(&sums[i], &sums[i], 1, ncclInt32, ncclSum, comms[i], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  EXPECT_EQ(sums[1], 2);
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Init, SeveralIds) {
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
  in_threads(2, [&](int rank) {
    ncclComm_t comm;
    ASSERT_NCCL(ncclCommInitRankScalable(&comm, 2, rank, 2, ids, nullptr));
    int sum = 0;
    EXPECT_NCCL(count_by_sum(comm, &sum));
    EXPECT_EQ(sum, 2);
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, rank, 0, ids, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, rank, 1, nullptr, nullptr), ncclInvalidArgument);
  });
}

TEST(Init, WrongArgumentsAndIds) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  int marker = 0;
  auto comm = reinterpret_cast<ncclComm_t>(&marker);
  EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
  ncclUniqueId damaged{};
  EXPECT_EQ(ncclCommInitRank(&comm, 1, damaged, 0), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  // In a group the failure is the group's, and what it made is gone.
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommInitRank(&comm, 1, id, 0));
  EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
}

TEST(Split, ColoursKeysAndSettings) {
  with_ranks(4, [](int rank, ncclComm_t comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "half";
    ncclComm_t half = nullptr, none = comm, same = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, rank % 2, -rank, &half, &config));
    int own = -1, count = 0, sum = 0;
    EXPECT_NCCL(ncclCommUserRank(half, &own));
    EXPECT_NCCL(ncclCommCount(half, &count));
    EXPECT_NCCL(count_by_sum(half, &sum));
    EXPECT_EQ(own, rank < 2 ? 1 : 0);
    EXPECT_EQ(count, 2);
    EXPECT_EQ(sum, 2);
    ASSERT_NCCL(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 5, rank, &none, nullptr));
    EXPECT_EQ(none == nullptr, rank == 0);
    EXPECT_EQ(ncclCommSplit(comm, -2, 0, &same, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, nullptr, nullptr), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommDestroy(none)) << "NULL is ignored";
    EXPECT_NCCL(ncclCommDestroy(half));
  });
}

TEST(Shrink, WithoutAFailure) {
  with_ranks(4, [](int rank, ncclComm_t comm) {
    int excluded[2] = {2, 0}, sum = 0, own = -1;
    ncclComm_t rest = comm;
    if (rank % 2 == 0) {  // an excluded rank does not call; if it does, it is told
      EXPECT_EQ(ncclCommShrink(comm, excluded, 2, &rest, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
      EXPECT_EQ(rest, nullptr);
      return;
    }
    int outside = 4;
    EXPECT_EQ(ncclCommShrink(comm, &outside, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comm, excluded, 0, &rest, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
    EXPECT_EQ(ncclCommShrink(comm, excluded, 2, &rest, nullptr, 2), ncclInvalidArgument);
    for (int round = 0; round < 3; ++round) {  // the parent stays usable: again
      ASSERT_NCCL(ncclCommShrink(comm, excluded, 2, &rest, nullptr, NCCL_SHRINK_DEFAULT));
      EXPECT_NCCL(count_by_sum(rest, &sum));
      EXPECT_NCCL(ncclCommUserRank(rest, &own));
      EXPECT_EQ(sum, 2);
      EXPECT_EQ(own, rank / 2);
      EXPECT_NCCL(ncclCommDestroy(rest));
    }
  });
}

TEST(Shrink, SetsThatDifferAreNamed) {
  with_ranks(3, [](int rank, ncclComm_t comm) {
    if (rank == 2) return;
    int excluded[2] = {2, 1};
    ncclComm_t rest = nullptr;
    // Rank 1 excludes 2 alone; rank 0 excludes rank 1, too, and may be done before that calls.
    const ncclResult_t result = ncclCommShrink(comm, excluded, rank == 0 ? 2 : 1, &rest, nullptr, NCCL_SHRINK_DEFAULT);
    if (rank == 0 && result == ncclSuccess) {
      EXPECT_NCCL(ncclCommDestroy(rest));
      return;
    }
    EXPECT_EQ(result, ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("rank 0 excludes 1, rank 1 does not"), std::string::npos)
        << ncclGetLastError(comm);
  });
}

TEST(NonBlocking, InitAndCallsGoOnInTheBackground) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t comms[2];
  int values[2] = {1, 2}, count = 0;
  // One after the other in one thread: neither waits for the other.
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
  ncclResult_t state;
  EXPECT_NCCL(ncclCommGetAsyncError(comms[0], &state));
  EXPECT_EQ(state, ncclInProgress);
  EXPECT_EQ(ncclAllReduce(&values[0], &values[0], 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCount(comms[0], &count), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclInProgress);
  for (ncclComm_t comm : comms) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);

  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ncclAllReduce(&values[i], &values[i], 1, ncclInt32, ncclSum, comms[i], nullptr), ncclInProgress);
  for (ncclComm_t comm : comms) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  EXPECT_EQ(values[0], 3);
  ncclGroupStart();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(ncclAllReduce(&values[i], &values[i], 1, ncclInt32, ncclSum, comms[i], nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  for (ncclComm_t comm : comms) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  EXPECT_EQ(values[1], 6);

  ncclComm_t children[2];
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ncclCommSplit(comms[i], 0, -i, &children[i], nullptr), ncclInProgress);
  for (ncclComm_t comm : children) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  EXPECT_NCCL(ncclCommUserRank(children[0], &count));
  EXPECT_EQ(count, 1);
  for (ncclComm_t comm : children) EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
  for (ncclComm_t comm : children) EXPECT_EQ(wait_until_ready(comm), ncclSuccess);
  for (ncclComm_t comm : children) EXPECT_NCCL(ncclCommDestroy(comm));
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NonBlocking, InitInAGroup) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t comms[2];
  ASSERT_NCCL(ncclGroupStart());
  for (int i = 0; i < 2; ++i) EXPECT_NCCL(ncclCommInitRankConfig(&comms[i], 2, id, i, &config));
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  for (ncclComm_t comm : comms) EXPECT_EQ(wait_until_ready(comm), ncclSuccess);
  // A call that waits in the background is ended by an abort, and the other rank is told.
  int value = 1;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInProgress);
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  EXPECT_EQ(wait_until_ready(comms[1]), ncclRemoteError);
  EXPECT_NCCL(ncclCommDestroy(comms[1]));
}

TEST(NonBlocking, FailureIsTheStateAndTheCallsAfterIt) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t comms[2];
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
  EXPECT_EQ(ncclCommInitRankConfig(&comms[1], 3, id, 1, &config), ncclInProgress);
  for (ncclComm_t comm : comms) {
    EXPECT_EQ(wait_until_ready(comm), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("nranks differs"), std::string::npos) << ncclGetLastError(comm);
    int sum = 0;
    EXPECT_EQ(count_by_sum(comm, &sum), ncclInvalidUsage);
    EXPECT_NCCL(ncclCommAbort(comm));
  }
}

// Whether the call blocks is the parent's; the child has the setting that it was given.
TEST(NonBlocking, ChildrenMayDifferFromTheirParent) {
  for (const int of_parent : {1, 0}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, other = NCCL_CONFIG_INITIALIZER;
    config.blocking = of_parent;
    other.blocking = 1 - of_parent;
    const ncclResult_t returned = of_parent != 0 ? ncclSuccess : ncclInProgress;
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    in_threads(2, [&](int rank) {
      ncclComm_t comm = nullptr, child = nullptr, alone = nullptr;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), returned);
      ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
      ASSERT_EQ(ncclCommSplit(comm, 0, rank, &child, &other), returned) << ncclGetLastError(nullptr);
      ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
      ASSERT_EQ(wait_until_ready(child), ncclSuccess);
      int sum = 0, excluded = 1;
      const ncclResult_t of_child = count_by_sum(child, &sum);
      EXPECT_EQ(of_child, of_parent != 0 ? ncclInProgress : ncclSuccess);
      EXPECT_EQ(wait_until_ready(child), ncclSuccess);
      EXPECT_EQ(sum, 2);
      if (rank == 0) {
        EXPECT_EQ(ncclCommShrink(comm, &excluded, 1, &alone, &other, NCCL_SHRINK_DEFAULT), returned);
        EXPECT_EQ(wait_until_ready(comm), ncclSuccess);
        EXPECT_EQ(wait_until_ready(alone), ncclSuccess);
        EXPECT_NCCL(ncclCommDestroy(alone));
      }
      EXPECT_NCCL(ncclCommDestroy(child));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST(NonBlocking, FailedCallsMakeNoHandle) {
  AllRanks ranks(1);
  ncclConfig_t config = non_blocking();
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t child = ranks[0], made = ranks[0];
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommSplit(ranks[0], 0, 0, &child, &config));
  EXPECT_NCCL(ncclCommInitRankConfig(&made, 1, id, 0, &config));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument) << "one blocks, the other does not";
  EXPECT_EQ(child, nullptr);
  EXPECT_EQ(made, nullptr);
  int excluded = 0;
  child = ranks[0];
  EXPECT_EQ(ncclCommShrink(ranks[0], &excluded, 1, &child, &config, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
  EXPECT_EQ(child, nullptr);
}

TEST(NonBlocking, InitThatNobodyJoinsCanBeAborted) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t comm;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  ncclResult_t state;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
}

TEST(NonBlocking, NotMixedWithBlockingInAGroup) {
  AllRanks ranks(1);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t comm;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  int value = 1;
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, ranks[0], nullptr));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Finalize, LeavesOnlyTheEnd) {
  AllRanks ranks(1);
  EXPECT_NCCL(ncclCommFinalize(ranks[0]));
  int value = 1;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclCommFinalize(ranks[0]), ncclInvalidUsage);
  EXPECT_EQ(ncclCommRevoke(ranks[0], 0), ncclInvalidUsage);
  ncclResult_t state;
  EXPECT_NCCL(ncclCommGetAsyncError(ranks[0], &state));
  EXPECT_EQ(state, ncclSuccess);
}

TEST(Memory, RegistrationsAndWindows) {
  with_ranks(2, [](int, ncclComm_t comm) {
    std::vector<float> buffer(1 << 18, 1.0f);
    void* handle = &handle;
    ncclWindow_t window;
    ASSERT_NCCL(ncclCommRegister(comm, buffer.data(), buffer.size() * sizeof(float), &handle));
    EXPECT_NE(handle, &handle);
    ASSERT_NCCL(ncclCommWindowRegister(comm, buffer.data(), 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
    EXPECT_NCCL(ncclAllReduce(buffer.data(), buffer.data(), buffer.size(), ncclFloat32, ncclSum, comm, nullptr));
    EXPECT_EQ(buffer.back(), 2.0f);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_NCCL(ncclCommDeregister(comm, handle));
    EXPECT_NCCL(ncclCommDeregister(comm, nullptr));
    int local = 0;  // a stack gains nothing: an empty handle, no error
    ASSERT_NCCL(ncclCommRegister(comm, &local, sizeof local, &handle));
    EXPECT_EQ(handle, nullptr);
    EXPECT_EQ(ncclCommRegister(comm, nullptr, 8, &handle), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(comm, &local, 8, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommWindowRegister(comm, buffer.data(), 4096, &window, 4), ncclInvalidArgument);
  });
}

TEST(Teams, AreArithmetic) {
  AllRanks ranks(4);
  const ncclTeam_t world = ncclTeamWorld(ranks[2]), lsa = ncclTeamLsa(ranks[2]), rail = ncclTeamRail(ranks[2]);
  EXPECT_EQ((std::vector<int>{world.nRanks, world.rank, world.stride}), (std::vector<int>{4, 2, 1}));
  EXPECT_EQ((std::vector<int>{lsa.nRanks, lsa.rank, lsa.stride}), (std::vector<int>{4, 2, 1}));
  EXPECT_EQ((std::vector<int>{rail.nRanks, rail.rank, rail.stride}), (std::vector<int>{1, 0, 4}));
  const ncclTeam_t even{2, 1, 2};  // ranks 0 and 2, seen by rank 2
  EXPECT_EQ(ncclTeamRankToWorld(ranks[2], even, 0), 0);
  EXPECT_EQ(ncclTeamRankToLsa(ranks[2], even, 1), 2);
  EXPECT_EQ(ncclTeamWorld(nullptr).nRanks, 0);
  EXPECT_EQ(ncclTeamRankToWorld(nullptr, even, 0), -1);
  EXPECT_EQ(ncclLLA2ACalcSlots(10, 12), 20);
  EXPECT_EQ(ncclDevCommCreate(ranks[0], nullptr, nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclDevCommDestroy(ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclLsaBarrierCreateRequirement(world, 1, nullptr, nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclGinBarrierCreateRequirement(ranks[0], world, 1, nullptr, nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclLLA2ACreateRequirement(1, 1, nullptr, nullptr), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("ncclLLA2ACreateRequirement"), std::string::npos);
}

}  // namespace
}  // namespace treering::testing
