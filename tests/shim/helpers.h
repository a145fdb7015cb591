// SPDX-License-Identifier: Apache-2.0
// What the tests of the shim share: ranks in threads, checks inside forked ranks, and the types' bit patterns.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl.h"
#include "support/processes.h"

namespace treering::testing {

inline ncclUniqueId as_nccl(const trUniqueId& id) {
  ncclUniqueId result;
  static_assert(sizeof result == sizeof id);
  std::memcpy(&result, &id, sizeof id);
  return result;
}

// Inside a body of RankProcesses: a failed call ends the rank with its text.
#define NCCL_CHECK(call)                                                                        \
  do {                                                                                          \
    if (ncclResult_t result_ = (call); result_ != ncclSuccess) {                                \
      ::treering::testing::say(std::string(#call) + " gave " + std::to_string(result_) + ": " + \
                               ncclGetLastError(nullptr));                                      \
      return 100;                                                                               \
    }                                                                                           \
  } while (false)
#define RANK_EXPECT(condition)                         \
  do {                                                 \
    if (!(condition)) {                                \
      ::treering::testing::say("not so: " #condition); \
      return 101;                                      \
    }                                                  \
  } while (false)

#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)
#define ASSERT_NCCL(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

// Calls body(rank) in `ranks` threads.
inline void in_threads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

// Calls body(rank, comm) in `ranks` threads, each a rank of a new communicator.
inline void with_ranks(int ranks, const std::function<void(int, ncclComm_t)>& body, ncclConfig_t* config = nullptr) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  in_threads(ranks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRankConfig(&comm, ranks, id, rank, config));
    body(rank, comm);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// All ranks of a communicator, driven by one thread.
class AllRanks {
 public:
  explicit AllRanks(int count) : comms_(static_cast<size_t>(count)) {
    EXPECT_NCCL(ncclCommInitAll(comms_.data(), count, nullptr));
  }
  ~AllRanks() {
    for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  AllRanks(const AllRanks&) = delete;
  AllRanks& operator=(const AllRanks&) = delete;
  ncclComm_t operator[](int rank) const { return comms_[static_cast<size_t>(rank)]; }
  ncclComm_t& operator[](int rank) { return comms_[static_cast<size_t>(rank)]; }
  int count() const { return static_cast<int>(comms_.size()); }

 private:
  std::vector<ncclComm_t> comms_;
};

// A communicator of this many ranks sums 1 over all.
inline ncclResult_t count_by_sum(ncclComm_t comm, int* sum) {
  *sum = 1;
  return ncclAllReduce(sum, sum, 1, ncclInt32, ncclSum, comm, nullptr);
}

// The state of a communicator once it is not ncclInProgress any more; ncclInProgress after a minute.
inline ncclResult_t wait_until_ready(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < 60'000 && state == ncclInProgress; ++i) {
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state;
}

inline ncclConfig_t non_blocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace treering::testing
