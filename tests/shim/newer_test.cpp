// SPDX-License-Identifier: Apache-2.0
// The host functions that NCCL 2.29 and 2.30 have added: grow, suspend, windows, properties, and what is refused.
#include <future>

#include "nccl_device.h"
#include "shim/helpers.h"

namespace treering::testing {
namespace {

void expect_rank_of(ncclComm_t comm, int rank, int ranks) {
  int own = -1, count = -1, sum = 0;
  EXPECT_NCCL(ncclCommUserRank(comm, &own));
  EXPECT_NCCL(ncclCommCount(comm, &count));
  EXPECT_NCCL(count_by_sum(comm, &sum));
  EXPECT_EQ(own, rank);
  EXPECT_EQ(count, ranks);
  EXPECT_EQ(sum, ranks);
}

bool last_error_has(const char* text) { return std::string(ncclGetLastError(nullptr)).find(text) != std::string::npos; }

TEST(Grow, TwoRanksBecomeThree) {
  ncclUniqueId first;
  ASSERT_NCCL(ncclGetUniqueId(&first));
  std::promise<ncclUniqueId> hand_over;
  auto handed = hand_over.get_future().share();
  in_threads(3, [&](int rank) {
    ncclComm_t comm = nullptr, grown = nullptr;
    ncclUniqueId id, other;
    if (rank < 2) {
      ASSERT_NCCL(ncclCommInitRank(&comm, 2, first, rank));
    }
    if (rank == 1) {  // any rank may be the root
      ASSERT_NCCL(ncclCommGetUniqueId(comm, &id));
      EXPECT_EQ(ncclCommGetUniqueId(comm, &other), ncclInvalidUsage) << "one at a time";
      hand_over.set_value(id);
    }
    if (rank == 2) id = handed.get();
    ASSERT_NCCL(ncclCommGrow(comm, 3, rank == 0 ? nullptr : &id, rank == 2 ? 2 : -1, &grown, nullptr));
    expect_rank_of(grown, rank, 3);
    if (rank < 2) expect_rank_of(comm, rank, 2);
    if (rank == 1) {
      ncclComm_t again = grown;
      EXPECT_EQ(ncclCommGrow(comm, 3, &id, -1, &again, nullptr), ncclInvalidArgument) << "it is used up";
      EXPECT_EQ(again, nullptr);
      EXPECT_NCCL(ncclCommGetUniqueId(comm, &other));
    }
    EXPECT_NCCL(ncclCommDestroy(grown));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Grow, RanksOfOneThread) {
  AllRanks old(2);
  ncclUniqueId id;
  ASSERT_NCCL(ncclCommGetUniqueId(old[0], &id));
  ncclComm_t grown[4];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_NCCL(ncclCommGrow(rank < 2 ? old[rank] : nullptr, 4, rank == 1 ? nullptr : &id, rank < 2 ? -1 : rank,
                             &grown[rank], nullptr));
  ASSERT_NCCL(ncclGroupEnd());
  in_threads(4, [&](int rank) { expect_rank_of(grown[rank], rank, 4); });
  for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Grow, NonBlocking) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = non_blocking();
  ncclComm_t old[2], grown[3];
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ncclCommInitRankConfig(&old[rank], 2, id, rank, &config), ncclInProgress);
  for (ncclComm_t comm : old) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  ASSERT_NCCL(ncclCommGetUniqueId(old[1], &id));
  EXPECT_EQ(ncclCommGrow(old[0], 3, nullptr, -1, &grown[0], nullptr), ncclInProgress) << "inherited";
  EXPECT_EQ(ncclCommGrow(old[1], 3, &id, -1, &grown[1], nullptr), ncclInProgress);
  EXPECT_EQ(ncclCommGrow(nullptr, 3, &id, 2, &grown[2], &config), ncclInProgress);
  for (ncclComm_t comm : grown) ASSERT_EQ(wait_until_ready(comm), ncclSuccess);
  int rank = -1;
  EXPECT_NCCL(ncclCommUserRank(grown[1], &rank));
  EXPECT_EQ(rank, 1);
  for (ncclComm_t comm : grown) EXPECT_NCCL(ncclCommDestroy(comm));
  for (ncclComm_t comm : old) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(Grow, WrongArguments) {
  AllRanks old(1);
  ncclUniqueId id, foreign;
  ASSERT_NCCL(ncclGetUniqueId(&foreign));
  ncclComm_t grown = old[0];
  EXPECT_EQ(ncclCommGrow(old[0], 2, nullptr, -1, &grown, nullptr), ncclInvalidUsage) << "no rank gave the id";
  EXPECT_TRUE(last_error_has("no rank gave an id")) << ncclGetLastError(nullptr);
  EXPECT_EQ(grown, nullptr);
  EXPECT_EQ(ncclCommGrow(old[0], 2, &foreign, -1, &grown, nullptr), ncclInvalidArgument);
  ASSERT_NCCL(ncclCommGetUniqueId(old[0], &id));
  EXPECT_EQ(ncclCommGrow(old[0], 2, &id, 0, &grown, nullptr), ncclInvalidArgument) << "the rank is kept: -1";
  EXPECT_EQ(ncclCommGrow(old[0], 1, &id, -1, &grown, nullptr), ncclInvalidArgument) << "no larger";
  EXPECT_EQ(ncclCommGrow(old[0], 2, &id, -1, nullptr, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(nullptr, 2, nullptr, 1, &grown, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGrow(nullptr, 2, &id, 2, &grown, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGetUniqueId(old[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommGetUniqueId(nullptr, &id), ncclInvalidArgument);
}

TEST(Suspend, RefusesCallsUntilResumed) {
  with_ranks(2, [](int rank, ncclComm_t comm) {
    int sum = 0;
    uint64_t value = 9;
    void* handle = nullptr;
    std::vector<char> buffer(4096);
    ncclComm_t child = nullptr;
    ncclUniqueId id;
    EXPECT_EQ(ncclCommResume(comm), ncclInvalidUsage);
    EXPECT_EQ(ncclCommSuspend(comm, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommSuspend(comm, 2), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &value));
    EXPECT_EQ(value, 0u);
    ASSERT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    EXPECT_EQ(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInvalidUsage);
    EXPECT_EQ(count_by_sum(comm, &sum), ncclInvalidUsage);
    EXPECT_EQ(ncclCommSplit(comm, 0, rank, &child, nullptr), ncclInvalidUsage);
    EXPECT_EQ(ncclCommGetUniqueId(comm, &id), ncclInvalidUsage);
    EXPECT_EQ(ncclCommRegister(comm, buffer.data(), buffer.size(), &handle), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("suspended"), std::string::npos) << ncclGetLastError(comm);
    EXPECT_NCCL(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &value));
    EXPECT_EQ(value, 1u);
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess) << "it has not failed";
    ASSERT_NCCL(ncclCommResume(comm));
    expect_rank_of(comm, rank, 2);
    EXPECT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM)) << "and it is destroyed in that state";
  });
}

TEST(Suspend, MemoryOfTheHostIsNoGpuMemory) {
  AllRanks ranks(1);
  for (ncclCommMemStat_t stat : {ncclStatGpuMemSuspend, ncclStatGpuMemPersist, ncclStatGpuMemTotal}) {
    uint64_t value = 9;
    EXPECT_NCCL(ncclCommMemStats(ranks[0], stat, &value));
    EXPECT_EQ(value, 0u);
  }
  uint64_t value = 9;
  EXPECT_EQ(ncclCommMemStats(ranks[0], ncclStatGpuMemTotal, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommMemStats(nullptr, ncclStatGpuMemTotal, &value), ncclInvalidArgument);
}

TEST(Window, KnowsItsBuffer) {
  with_ranks(2, [](int, ncclComm_t comm) {
    std::vector<float> buffer(1 << 12);
    float local[4];
    ncclWindow_t window = nullptr, small = nullptr;
    void* pointer = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, buffer.data(), buffer.size() * sizeof(float), &window,
                                       NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING));
    ASSERT_NCCL(ncclCommWindowRegister(comm, local, sizeof local, &small, NCCL_WIN_DEFAULT));
    EXPECT_NCCL(ncclWinGetUserPtr(comm, window, &pointer));
    EXPECT_EQ(pointer, buffer.data());
    EXPECT_NCCL(ncclWinGetUserPtr(comm, small, &pointer));
    EXPECT_EQ(pointer, local) << "also where registering gains nothing";
    EXPECT_EQ(ncclWinGetUserPtr(comm, window, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclWinGetUserPtr(nullptr, window, &pointer), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_NCCL(ncclCommWindowDeregister(comm, small));
    EXPECT_NCCL(ncclCommWindowDeregister(comm, nullptr));
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclInvalidArgument) << "twice";
    EXPECT_EQ(ncclWinGetUserPtr(comm, window, &pointer), ncclInvalidArgument);
    EXPECT_EQ(pointer, nullptr);
  });
}

TEST(Properties, AreThoseOfTheRank) {
  AllRanks ranks(3);
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  properties.deviceApiSupport = properties.hostRmaSupport = true;
  ASSERT_NCCL(ncclCommQueryProperties(ranks[2], &properties));
  EXPECT_EQ(properties.size, sizeof properties);
  EXPECT_EQ(properties.rank, 2);
  EXPECT_EQ(properties.nRanks, 3);
  EXPECT_EQ(properties.cudaDev, 2);
  EXPECT_EQ(properties.nvmlDev, -1);
  EXPECT_EQ(properties.nLsaTeams, 1);
  EXPECT_FALSE(properties.deviceApiSupport || properties.multimemSupport || properties.hostRmaSupport);
  EXPECT_EQ(properties.ginType, NCCL_GIN_TYPE_NONE);
  EXPECT_EQ(properties.railedGinType, NCCL_GIN_TYPE_NONE);
  // A shorter struct, of an older header, is written as far as it goes.
  properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  properties.size = offsetof(ncclCommProperties_t, nLsaTeams);
  properties.nLsaTeams = 77;
  ASSERT_NCCL(ncclCommQueryProperties(ranks[1], &properties));
  EXPECT_EQ(properties.rank, 1);
  EXPECT_EQ(properties.nLsaTeams, 77);
  properties.magic = 0;
  EXPECT_EQ(ncclCommQueryProperties(ranks[1], &properties), ncclInvalidArgument);
  EXPECT_EQ(ncclCommQueryProperties(ranks[1], nullptr), ncclInvalidArgument);
}

TEST(Refused, OneSidedCalls) {
  AllRanks ranks(1);
  float value = 1;
  ncclWaitSignalDesc_t signal{1, 0, 0, 0};
  EXPECT_EQ(ncclPutSignal(&value, 1, ncclFloat32, 0, nullptr, 0, 0, 0, 0, ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_TRUE(last_error_has("ncclPutSignal: there are no one-sided calls")) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclSignal(0, 0, 0, 0, ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclWaitSignal(1, &signal, ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclSignal(0, 0, 0, 0, nullptr, nullptr), ncclInvalidArgument);
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_EQ(ncclSignal(0, 0, 0, 0, ranks[0], nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "the group's failure, too";
}

TEST(Refused, WhatIsForKernels) {
  void* pointer = &pointer;
  auto expect_refused = [&](ncclResult_t result) {
    EXPECT_EQ(result, ncclInvalidUsage);
    EXPECT_EQ(pointer, nullptr);
    pointer = &pointer;
  };
  expect_refused(ncclGetLsaDevicePointer(nullptr, 0, 0, &pointer));
  expect_refused(ncclGetPeerDevicePointer(nullptr, 0, 0, &pointer));
  expect_refused(ncclGetLsaMultimemDevicePointer(nullptr, 0, &pointer));
  expect_refused(ncclGetMultimemDevicePointer(nullptr, 0, ncclMultimemHandle_t{nullptr}, &pointer));
  EXPECT_EQ(ncclGetLsaDevicePointer(nullptr, 0, 0, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGinInboxA2ACreateRequirement({1, 0, 1}, 1, 1, nullptr, nullptr), ncclInvalidUsage);
  EXPECT_EQ(ncclGinOutboxCreateRequirement(1, 1, nullptr, nullptr), ncclInvalidUsage);
}

}  // namespace
}  // namespace treering::testing
