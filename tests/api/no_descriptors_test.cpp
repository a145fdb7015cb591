// SPDX-License-Identifier: Apache-2.0
// A rank that has no file descriptor left for the first connection between it and another is named on both, whichever
// of them is to open it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/descriptor_limit.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

class ARankWithoutDescriptors : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Rank, ARankWithoutDescriptors, ::testing::Values(0, 1));

TEST_P(ARankWithoutDescriptors, IsNamedOnBothSides) {
  const int victim = GetParam();
  const SharedNumber is_limited;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) -> int {
    trConfig_t config = config_with_timeout(4'000);
    config.transports = "tcp";
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    if (rank == victim && !leave_descriptors(0)) return 1;
    if (rank == victim) *is_limited = 1;
    if (!soon([&] { return *is_limited == 1; })) return 2;  // before that a connection would find a descriptor
    std::vector<char> bytes(1 << 20);
    const trResult_t result = rank == 0 ? trSend(bytes.data(), bytes.size(), trUint8, 1, comm, nullptr)
                                        : trRecv(bytes.data(), bytes.size(), trUint8, 0, comm, nullptr);
    say(trGetLastError(comm));
    allow_descriptors();
    TR_CHECK(trCommDestroy(comm));
    return 10 + result;
  });
  const std::string named = "rank " + std::to_string(victim) + " (pid " + std::to_string(processes.pid(victim));
  for (const RankResult& result : processes.wait_all()) {
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << result.output;
    EXPECT_NE(result.output.find(named), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("no file descriptor is left"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
