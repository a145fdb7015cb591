// SPDX-License-Identifier: Apache-2.0
// Ranks of one process that reach one another by verbs alone, through the C API. The module and the stand-in for
// libibverbs are found as a program finds them.
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "transport/module_ranks.h"
#include "transport/verbs/stand_in.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

class VerbsRanks : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TREERING_TRANSPORTS", "verbs", 1); }
  void TearDown() override {
    for (const char* name : {"TREERING_TRANSPORTS", "TREERING_VERBS_DEVICES", "TREERING_VERBS_GID"}) unsetenv(name);
  }
};

TEST_F(VerbsRanks, RunCollectives) {
  run_ranks(4, [](trComm_t comm, int rank, int ranks) { run_collectives(comm, rank, ranks, "verbs"); });
}

TEST_F(VerbsRanks, SplitAndLeave) { split_and_leave(); }

TEST_F(VerbsRanks, LastMessagesArrive) { send_last_messages(); }

void reduce(trComm_t comm, float* memory, size_t count, int ranks) {
  std::fill(memory, memory + count, 1.0F);
  EXPECT_SUCCESS(trAllReduce(memory, memory + count, count, trFloat32, trSum, comm, nullptr));
  for (size_t i = 0; i < count; i += 97) ASSERT_EQ(memory[count + i], static_cast<float>(ranks));
}

// Memory is registered with the device when a call first uses it, and not after it was given back.
TEST_F(VerbsRanks, SendFromRegisteredMemory) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 400'000, kBytes = 2 * kCount * sizeof(float);
  std::barrier arrived(kRanks);
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    void* allocated = nullptr;
    EXPECT_SUCCESS(trMemAlloc(&allocated, kBytes));
    std::vector<float> own(2 * kCount);
    void* handle = nullptr;
    EXPECT_SUCCESS(trCommRegister(comm, own.data(), kBytes, &handle));
    reduce(comm, own.data() + 1, 10, kRanks);  // connects; these payloads are inline
    for (auto* memory : {static_cast<float*>(allocated), own.data()}) {
      reduce(comm, memory, kCount, kRanks);
      arrived.arrive_and_wait();
      const uint64_t before = registered_bytes();
      arrived.arrive_and_wait();
      reduce(comm, memory, kCount, kRanks);
      arrived.arrive_and_wait();
      EXPECT_EQ(registered_bytes(), before) << "registered again";
      arrived.arrive_and_wait();
      if (memory == allocated)
        EXPECT_SUCCESS(trMemFree(allocated));
      else
        EXPECT_SUCCESS(trCommDeregister(comm, handle));
      arrived.arrive_and_wait();
      if (rank == 0) {
        EXPECT_LE(registered_bytes() + kRanks * (kBytes - 2 * 4096), before);
      }
      arrived.arrive_and_wait();
    }
  });
}

// What a rank shows is told before its part of the reduction: who sends it results has heard of it.
TEST_F(VerbsRanks, ResultsLandInRegisteredOutputs) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 300'000, kBytes = kCount * sizeof(float);
  constexpr int kCalls = 5;
  setenv("TREERING_ALGO", "two-shot", 1);
  setenv("TREERING_VERBS_DEVICES", "=fake0", 1);
  std::barrier arrived(kRanks);
  run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
    void* allocated = nullptr;
    EXPECT_SUCCESS(trMemAlloc(&allocated, 2 * kBytes));
    auto* memory = static_cast<float*>(allocated);
    reduce(comm, memory, kCount, kRanks);  // connects
    if (rank == 0) watch(memory + kCount, kBytes);
    arrived.arrive_and_wait();
    for (int call = 0; call < kCalls; ++call) reduce(comm, memory, kCount, kRanks);
    arrived.arrive_and_wait();
    if (rank == 0) {
      // All but the third that it computes itself.
      EXPECT_NEAR(static_cast<double>(counters().bytes_watched), kCalls * kBytes * 2.0 / 3, kCalls * kBytes * 0.01);
      watch(nullptr, 0);
    }
    arrived.arrive_and_wait();
    EXPECT_SUCCESS(trMemFree(allocated));
  });
  unsetenv("TREERING_ALGO");
}

// Each rank has both devices of the stand-in: large messages go by both, and the device is named that is not used.
TEST_F(VerbsRanks, UseBothDevices) {
  constexpr int kRanks = 2;
  constexpr size_t kCount = 400'000;
  for (const bool one : {false, true}) {
    if (one) setenv("TREERING_VERBS_DEVICES", "=fake1", 1);
    run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
      std::vector<float> memory(2 * kCount);
      reduce(comm, memory.data(), kCount, kRanks);
      if (rank == 0) {
        EXPECT_EQ(counters().qps_alive, one ? 2u : 4u) << "two ends for each rail";
      }
      reduce(comm, memory.data(), kCount, kRanks);
    });
  }
}

// Where verbs cannot be had the pair takes the next transport.
TEST_F(VerbsRanks, FallBackToTcp) {
  setenv("TREERING_TRANSPORTS", "verbs,tcp", 1);
  setenv("TREERING_VERBS_DEVICES", "mlx5_7", 1);
  expect_tcp();
}

std::string error_of_init() {
  trUniqueId id;
  EXPECT_EQ(trGetUniqueId(&id), trSuccess);
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      trComm_t comm = nullptr;
      if (trCommInitRank(&comm, 2, id, rank) == trSuccess) {
        trCommDestroy(comm);
        return;
      }
      errors[rank] = trGetLastError(nullptr);
    });
  for (std::thread& thread : threads) thread.join();
  return errors[0];
}

TEST_F(VerbsRanks, AnUnknownDeviceIsAnErrorThatListsWhatThereIs) {
  setenv("TREERING_VERBS_DEVICES", "mlx5_7", 1);
  const std::string error = error_of_init();
  for (const char* part : {"fake0 port 1", "fake1 port 1", "mlx5_7"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
}

TEST_F(VerbsRanks, AnUnknownGidIsAnErrorThatListsWhatThereIs) {
  setenv("TREERING_VERBS_GID", "200", 1);
  const std::string error = error_of_init();
  for (const char* part : {"TREERING_VERBS_GID is 200", "10.98.0.1 (RoCE v2)"})
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
}

}  // namespace
}  // namespace treering::testing
