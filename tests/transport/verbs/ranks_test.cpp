// SPDX-License-Identifier: Apache-2.0
// Ranks of one process that reach one another by verbs alone, through the C API. The module and the stand-in for
// libibverbs are found as a program finds them.
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/waiting.h"
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

// Each of 32 ranks has queue pairs to those alone with which its schedule exchanges messages, at most 2 log2(32).
TEST_F(VerbsRanks, HaveQueuePairsToThePeersOfTheirSchedule) {
  constexpr int kRanks = 32;
  setenv("TREERING_VERBS_DEVICES", "=fake0", 1);
  struct Case {
    const char* algorithm;
    uint32_t ends;  // of all ranks
  };
  // A tree has an edge for each rank but its root.
  for (const Case& expected :
       {Case{"ring", 2 * kRanks}, {"recursive-doubling", 5 * kRanks}, {"tree", 2 * (kRanks - 1)}}) {
    setenv("TREERING_ALGO", expected.algorithm, 1);
    std::barrier arrived(kRanks);
    run_ranks(kRanks, [&](trComm_t comm, int rank, int) {
      std::vector<float> memory(2 * 5000);
      reduce(comm, memory.data(), 5000, kRanks);
      arrived.arrive_and_wait();
      if (rank == 0) {
        EXPECT_EQ(counters().qps_alive, expected.ends) << expected.algorithm;
      }
      arrived.arrive_and_wait();
    });
  }
  unsetenv("TREERING_ALGO");
}

int held_calls() {
  void* const stand_in = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  const int held = reinterpret_cast<decltype(&fake_verbs_held_calls)>(dlsym(stand_in, "fake_verbs_held_calls"))();
  dlclose(stand_in);
  return held;
}
void release_calls() { call_stand_in<decltype(fake_verbs_release_calls)>("fake_verbs_release_calls"); }

// Two more ranks of this process meet.
void run_over_tcp() {
  trUniqueId id;
  EXPECT_SUCCESS(trGetUniqueId(&id));
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.transports = "tcp";
  config.timeout_ms = 10'000;
  std::thread ranks[2];
  for (int rank = 0; rank < 2; ++rank)
    ranks[rank] = std::thread([&, rank] {
      trComm_t comm = nullptr;
      EXPECT_SUCCESS(trCommInitRankConfig(&comm, 2, id, rank, &config));
      EXPECT_SUCCESS(trCommDestroy(comm));
    });
  for (std::thread& rank : ranks) rank.join();
}

// Rank 0 sends to rank 1, which is in no call. It makes its own end of the link first; the call of the function by which
// the other end is made is held. What both do then:
template <typename Sent, typename Held>
void run_with_a_held_call(const char* function, Sent sent, Held held) {
  setenv("TREERING_VERBS_DEVICES", "=fake0", 1);
  trUniqueId id;
  EXPECT_SUCCESS(trGetUniqueId(&id));
  std::barrier arrived(2);
  std::thread ranks[2];
  for (int rank = 0; rank < 2; ++rank)
    ranks[rank] = std::thread([&, rank] {
      trComm_t comm = nullptr;
      EXPECT_SUCCESS(trCommInitRank(&comm, 2, id, rank));
      arrived.arrive_and_wait();
      if (rank == 0) {
        call_stand_in<decltype(fake_verbs_hold_calls)>("fake_verbs_hold_calls", function, 1 + 1);
        const int number = 17;
        sent(trSend(&number, 1, trInt32, 1, comm, nullptr));
        EXPECT_SUCCESS(trCommDestroy(comm));
      } else {
        EXPECT_TRUE(soon([] { return held_calls() == 1; }));
        held(comm);
      }
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(counters().qps_alive, 0u);
}

// All ranks of the process share the control thread. It is free while a link is made, so that others meet.
TEST_F(VerbsRanks, ALinkThatIsMadeHoldsUpNoControlConnection) {
  for (const char* function : {"ibv_create_qp", "ibv_reg_mr"}) {
    std::latch has_sent(1);
    run_with_a_held_call(
        function,
        [&](trResult_t result) {
          EXPECT_EQ(result, trSuccess);
          has_sent.count_down();
        },
        [&](trComm_t comm) {
          run_over_tcp();
          release_calls();
          has_sent.wait();  // the rank is in no call
          int number = 0;
          EXPECT_SUCCESS(trRecv(&number, 1, trInt32, 0, comm, nullptr));
          EXPECT_EQ(number, 17);
          EXPECT_SUCCESS(trCommDestroy(comm));
        });
  }
}

TEST_F(VerbsRanks, ARankEndsWhileALinkIsMade) {
  for (const auto end : {&trCommDestroy, &trCommAbort})
    run_with_a_held_call(
        "ibv_create_qp", [](trResult_t) {},  // the peer may take it, or has left
        [&](trComm_t comm) {
          std::thread ends([&] { EXPECT_SUCCESS(end(comm)); });
          release_calls();
          ends.join();
        });
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
