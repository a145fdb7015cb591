// SPDX-License-Identifier: Apache-2.0
// A rank that gets no memory in the middle of a call: all ranks are told which.
#include <cstdlib>
#include <new>
#include <string>
#include <tuple>
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
constexpr size_t kCount = 1 << 20;

enum class Way { kBlocking, kStream, kGroup };
using Case = std::tuple<const char*, Way>;

// Runs on the thread of the streams, as what follows on its stream does.
void fail_the_next(trResult_t /*result*/, void* fails) { fails_next = *static_cast<const bool*>(fails); }

// An allreduce for which this rank has no memory, if it is to have none. Returns 0, or the exit code.
int reduce(Way way, trComm_t comm, bool fails, trResult_t* result) {
  std::vector<float> values(kCount, 1.0f);
  const auto call = [&](trStream_t stream) {
    return trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, stream);
  };
  if (way == Way::kBlocking) {
    fails_next = fails;  // for a schedule of which there is none yet
    *result = call(nullptr);
    return std::exchange(fails_next, false) ? 2 : 0;
  }
  if (way == Way::kGroup) {
    TR_CHECK(trGroupStart());
    TR_CHECK(call(nullptr));
    TR_CHECK(call(nullptr));
    fails_next = fails;
    *result = trGroupEnd();
    return std::exchange(fails_next, false) ? 2 : 0;
  }
  trStream_t stream = nullptr;
  TR_CHECK(trStreamCreate(&stream));
  TR_CHECK(trStreamAddCallback(stream, fail_the_next, &fails));
  *result = call(stream);  // another rank may have told of its lack already
  if (*result == trSuccess) *result = trStreamSynchronize(stream);
  (void)trStreamDestroy(stream);
  return 0;
}

class OutOfMemory : public ::testing::TestWithParam<Case> {};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  constexpr const char* kWays[] = {"Blocking", "OnAStream", "InAGroup"};
  const std::string over = std::get<0>(info.param)[0] == 't' ? "Tcp" : "SharedMemory";
  return over + kWays[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(Over, OutOfMemory,
                         ::testing::Combine(::testing::Values("shared-memory", "tcp"),
                                            ::testing::Values(Way::kBlocking, Way::kStream, Way::kGroup)),
                         name_of);

TEST_P(OutOfMemory, IsToldToAllRanks) {
  const Way way = std::get<1>(GetParam());
  RankProcesses processes(kRanks, [way](int rank, const trUniqueId& id) {
    setenv("TREERING_TRANSPORTS", std::get<0>(GetParam()), 1);
    trConfig_t config = config_with_timeout(20'000);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
    float value = 1.0f;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    trResult_t result = trSuccess;
    if (const int code = reduce(way, comm, rank == kVictim, &result); code != 0) return code;
    say(trGetLastError(comm));
    const trResult_t again = trBarrier(comm, nullptr);
    say(trGetLastError(comm));
    trCommDestroy(comm);
    return again == result ? 10 + result : 1;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << "rank " << rank << ": " << result.output;
    const std::string name = "rank 1 (pid " + std::to_string(processes.pid(kVictim));
    EXPECT_NE(result.output.find(name), std::string::npos) << result.output;
    const char* const where =
        way == Way::kGroup ? " ran out of memory in trGroupEnd" : " ran out of memory in operation 2";
    EXPECT_NE(result.output.find(where), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
