// SPDX-License-Identifier: Apache-2.0
// The order of hosts follows the switches that the processes are told of.
#include <cstdlib>

#include "support/processes.h"

namespace treering::testing {
namespace {

std::string ring_of(trComm_t comm, int ranks) {
  std::vector<int> ring(static_cast<size_t>(ranks));
  if (trCommGetRing(comm, ring.data()) != trSuccess) return trGetLastError(comm);
  std::string text;
  for (int rank : ring) text += std::to_string(rank);
  return text;
}

TEST(Switches, OrderTheRing) {
  const std::vector<std::string> names{"a.x", "b.y", "a.z", "b.y", "a.x"};
  const auto ranks = static_cast<int>(names.size());
  RankProcesses processes(ranks, [&](int rank, const trUniqueId& id) {
    setenv("TREERING_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
    setenv("TREERING_SWITCHES", names[static_cast<size_t>(rank)].c_str(), 1);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, ranks, id, rank));
    if (const std::string ring = ring_of(comm, ranks); ring != "04213") return say("the ring is " + ring), 50;
    int one = 1, sum = 0;
    TR_CHECK(trAllReduce(&one, &sum, 1, trInt32, trSum, comm, nullptr));
    if (sum != ranks) return say("the sum is " + std::to_string(sum)), 51;
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < ranks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ", signal " << result.signal << ": " << result.output;
  }
}

TEST(Switches, WithoutANameAreRefused) {
  RankProcesses processes(1, [&](int, const trUniqueId& id) {
    setenv("TREERING_SWITCHES", "spine..leaf", 1);
    trComm_t comm = nullptr;
    if (trCommInitRank(&comm, 1, id, 0) != trInvalidArgument) return 50;
    say(trGetLastError(nullptr));
    return 0;
  });
  const RankResult result = processes.wait(0);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("TREERING_SWITCHES is 'spine..leaf'"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace treering::testing
