// SPDX-License-Identifier: Apache-2.0
// A rank that gets no memory in the middle of a call: all ranks are told which.
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"

namespace {
thread_local bool fails_next = false;
}  // namespace

// That of the library, too.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (std::exchange(fails_next, false)) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace treering::testing {
namespace {

constexpr int kRanks = 3, kVictim = 1;

class OutOfMemory : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, OutOfMemory, ::testing::Values("shared-memory", "tcp"),
                         [](const auto& info) { return info.param[0] == 't' ? "Tcp" : "SharedMemory"; });

TEST_P(OutOfMemory, IsToldToAllRanks) {
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    setenv("TREERING_TRANSPORTS", GetParam(), 1);
    trConfig_t config = config_with_timeout(20'000);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
    std::vector<float> values(1 << 20, 1.0f);
    TR_CHECK(trAllReduce(values.data(), values.data(), 1, trFloat32, trSum, comm, nullptr));
    // A schedule of which there is none yet.
    fails_next = rank == kVictim;
    const trResult_t result = trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, nullptr);
    fails_next = false;
    say(trGetLastError(comm));
    const trResult_t again = trBarrier(comm, nullptr);
    trCommDestroy(comm);
    return again == result ? 10 + result : 1;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << "rank " << rank << ": " << result.output;
    const std::string name = "rank 1 (pid " + std::to_string(processes.pid(kVictim));
    EXPECT_NE(result.output.find(name), std::string::npos) << result.output;
    EXPECT_NE(result.output.find(" ran out of memory in operation 2"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
