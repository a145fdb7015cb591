// SPDX-License-Identifier: Apache-2.0
// Ranks of one process that reach one another by verbs alone, through the C API. The module and the stand-in for
// libibverbs are found as a program finds them.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_verbs/fake_verbs.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

#define EXPECT_SUCCESS(call) ASSERT_EQ(call, trSuccess) << trGetLastError(nullptr)

class VerbsRanks : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TREERING_TRANSPORTS", "verbs", 1); }
  void TearDown() override {
    for (const char* name : {"TREERING_TRANSPORTS", "TREERING_VERBS_DEVICES", "TREERING_VERBS_GID"}) unsetenv(name);
  }

  template <typename Rank>
  static void run(int ranks, Rank rank) {
    trUniqueId id;
    EXPECT_SUCCESS(trGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int i = 0; i < ranks; ++i)
      threads.emplace_back([&, i] {
        trComm_t comm = nullptr;
        EXPECT_SUCCESS(trCommInitRank(&comm, ranks, id, i));
        rank(comm, i, ranks);
        EXPECT_EQ(trCommDestroy(comm), trSuccess);
      });
    for (std::thread& thread : threads) thread.join();
  }
};

void run_collectives(trComm_t comm, int rank, int ranks) {
  trSelection_t selection{};
  EXPECT_SUCCESS(trGetSelection(comm, trCollAllReduce, nullptr, nullptr, 1 << 20, trFloat32, &selection));
  EXPECT_STREQ(selection.transport, "verbs");
  for (const size_t count : {1u, 1000u, 300'000u}) {
    std::vector<float> values(count), sums(count), all(count * static_cast<size_t>(ranks));
    std::iota(values.begin(), values.end(), static_cast<float>(rank));
    for (int time = 0; time < 3; ++time) {
      EXPECT_SUCCESS(trAllReduce(values.data(), sums.data(), count, trFloat32, trSum, comm, nullptr));
      for (size_t i = 0; i < count; i += 97)
        ASSERT_EQ(sums[i],
                  static_cast<float>(ranks) * static_cast<float>(i) + static_cast<float>(ranks * (ranks - 1) / 2));
    }
    EXPECT_SUCCESS(trAllGather(values.data(), all.data(), count, trFloat32, comm, nullptr));
    for (int peer = 0; peer < ranks; ++peer)
      ASSERT_EQ(all[count * static_cast<size_t>(peer)], static_cast<float>(peer));
  }
  std::vector<int> to(static_cast<size_t>(ranks)), from(static_cast<size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) to[static_cast<size_t>(peer)] = 100 * rank + peer;
  EXPECT_SUCCESS(trAllToAll(to.data(), from.data(), 1, trInt32, comm, nullptr));
  for (int peer = 0; peer < ranks; ++peer) ASSERT_EQ(from[static_cast<size_t>(peer)], 100 * peer + rank);
}

TEST_F(VerbsRanks, RunCollectives) { run(4, run_collectives); }

TEST_F(VerbsRanks, SplitAndLeave) {
  run(4, [](trComm_t comm, int rank, int) {
    trComm_t half = nullptr;
    EXPECT_SUCCESS(trCommSplit(comm, rank % 2, rank, &half, nullptr));
    float one = 1;
    EXPECT_SUCCESS(trAllReduce(&one, &one, 1, trFloat32, trSum, half, nullptr));
    EXPECT_EQ(one, 2);
    EXPECT_SUCCESS(trCommDestroy(half));
  });
}

// A rank sends and leaves at once: what it sent arrives.
TEST_F(VerbsRanks, LastMessagesArrive) {
  for (int time = 0; time < 5; ++time)
    run(2, [](trComm_t comm, int rank, int) {
      std::vector<char> data(50'000, static_cast<char>(7));
      if (rank == 0) {
        EXPECT_SUCCESS(trSend(data.data(), data.size(), trInt8, 1, comm, nullptr));
      } else {
        std::vector<char> got(data.size());
        EXPECT_SUCCESS(trRecv(got.data(), got.size(), trInt8, 0, comm, nullptr));
        EXPECT_EQ(got, data);
      }
    });
}

// What the stand-in has counted, once the module is open.
fake_verbs_counters counters() {
  void* const stand_in = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto read = reinterpret_cast<decltype(&fake_verbs_get_counters)>(dlsym(stand_in, "fake_verbs_get_counters"));
  fake_verbs_counters counters{};
  read(&counters);
  dlclose(stand_in);
  return counters;
}
uint64_t registered_bytes() { return counters().bytes_registered; }

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
  run(kRanks, [&](trComm_t comm, int rank, int) {
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

// Where verbs cannot be had the pair takes the next transport.
TEST_F(VerbsRanks, FallBackToTcp) {
  setenv("TREERING_TRANSPORTS", "verbs,tcp", 1);
  setenv("TREERING_VERBS_DEVICES", "mlx5_7", 1);
  run(2, [](trComm_t comm, int, int) {
    trSelection_t selection{};
    EXPECT_SUCCESS(trGetSelection(comm, trCollAllReduce, nullptr, nullptr, 1 << 20, trFloat32, &selection));
    EXPECT_STREQ(selection.transport, "tcp");
    float one = 1;
    EXPECT_SUCCESS(trAllReduce(&one, &one, 1, trFloat32, trSum, comm, nullptr));
    EXPECT_EQ(one, 2);
  });
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
