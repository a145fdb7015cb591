// SPDX-License-Identifier: Apache-2.0
// Links of a communicator that is in no call, while its process waits for something else.
#include "communicator/idle_links.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace {
thread_local bool fails_next = false;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  if (std::exchange(fails_next, false)) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace treering::testing {
namespace {

constexpr int kRanks = 3, kIdle = 1;
constexpr size_t kCount = 1 << 20;

// The others open streams to it for large messages, which it has no memory to keep: they would wait for it in vain.
TEST(IdleLinks, ALackOfMemoryIsToldToAllRanks) {
  setenv("TREERING_TRANSPORTS", "tcp", 1);
  SharedNumber there, lacks;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    trConfig_t config = config_with_timeout(30'000);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
    TR_CHECK(trBarrier(comm, nullptr));
    ++*there;
    if (!soon([&] { return *there == kRanks; })) return 1;
    trResult_t result = trSuccess;
    if (rank == kIdle) {
      const auto has_served = [] {
        IdleLinks::serve();
        return !fails_next;
      };
      ++*lacks;
      fails_next = true;
      if (!soon(has_served)) return 1;
      result = trBarrier(comm, nullptr);
    } else {
      std::vector<float> values(kCount, 1.0f);
      if (!soon([&] { return *lacks == 1; })) return 1;
      result = trAllReduce(values.data(), values.data(), kCount, trFloat32, trSum, comm, nullptr);
    }
    say(trGetLastError(comm));
    TR_CHECK(trCommDestroy(comm));
    return 10 + result;
  });
  unsetenv("TREERING_TRANSPORTS");
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << "rank " << rank << ": " << result.output;
    for (const std::string& part : {"rank 1 (pid " + std::to_string(processes.pid(kIdle)),
                                    std::string(" ran out of memory in the work on its connections between calls")})
      EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
