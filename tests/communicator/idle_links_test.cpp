// SPDX-License-Identifier: Apache-2.0
// Links of a communicator that is in no call, while its process waits for something else.
#include "communicator/idle_links.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "support/lacking_memory.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3, kIdle = 1;
constexpr size_t kCount = 1 << 20;

// How it goes on once it has lacked memory: with a call, or it serves its links.
enum class Then { kCalls, kServes };
using Case = std::tuple<bool, Then>;  // whether it lacked it even for the words

class Lack : public ::testing::TestWithParam<Case> {};
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return std::string(std::get<bool>(info.param) ? "OfAllMemory" : "OfOnePiece") +
         (std::get<Then>(info.param) == Then::kCalls ? "ThenACall" : "ThenNone");
}
INSTANTIATE_TEST_SUITE_P(IdleLinks, Lack,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(Then::kCalls, Then::kServes)),
                         name_of);

bool has_failed(trComm_t comm) {
  trResult_t state = trSuccess;
  return trCommGetAsyncError(comm, &state) != trSuccess || (state != trSuccess && state != trInProgress);
}

// The others open streams to it for large messages, which it has no memory to keep: they would wait for it in vain.
TEST_P(Lack, IsToldToAllRanks) {
  const auto [of_all, then] = GetParam();
  setenv("TREERING_TRANSPORTS", "tcp", 1);
  SharedNumber there, lacks;
  RankProcesses processes(kRanks, [&, of_all = of_all, then = then](int rank, const trUniqueId& id) {
    trConfig_t config = config_with_timeout(30'000);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
    TR_CHECK(trBarrier(comm, nullptr));
    ++*there;
    if (!soon([&] { return *there == kRanks; })) return 1;
    trResult_t result = trSuccess;
    if (rank == kIdle) {
      const auto has_lacked = [of_all] {
        (of_all ? memory().fails_always : memory().fails_next) = true;
        IdleLinks::serve();
        memory().fails_always = memory().fails_next = false;
        return memory().failures > 0;
      };
      ++*lacks;
      if (!soon(has_lacked)) return 1;
      const auto is_told = [comm] {
        IdleLinks::serve();
        return has_failed(comm);
      };
      if (then == Then::kServes && !soon(is_told)) return 2;
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
