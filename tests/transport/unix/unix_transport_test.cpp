// SPDX-License-Identifier: Apache-2.0
// A transport that the library does not know runs collectives through the C API once its row is added.
#include "transport/unix/unix_transport.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "support/processes.h"
#include "transport/table.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 4;

int run_collectives(int rank, const trUniqueId& id) {
  setenv("TREERING_TRANSPORTS", "unix", 1);
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
  trSelection_t selection{};
  TR_CHECK(trGetSelection(comm, trCollAllReduce, nullptr, nullptr, 1 << 20, trFloat32, &selection));
  if (std::string(selection.transport) != "unix") return say(std::string("used ") + selection.transport), 101;
  for (const size_t count : {1u, 1000u, 3'000'000u}) {
    std::vector<float> values(count), sums(count);
    std::iota(values.begin(), values.end(), static_cast<float>(rank));
    TR_CHECK(trAllReduce(values.data(), sums.data(), count, trFloat32, trSum, comm, nullptr));
    for (size_t i = 0; i < count; i += 997)
      if (sums[i] != 4 * static_cast<float>(i) + 6) return say("a wrong sum at " + std::to_string(i)), 102;
    std::vector<float> all(count * kRanks);
    TR_CHECK(trAllGather(values.data(), all.data(), count, trFloat32, comm, nullptr));
    for (int peer = 0; peer < kRanks; ++peer)
      if (all[count * static_cast<size_t>(peer)] != static_cast<float>(peer)) return say("a wrong block"), 103;
  }
  trComm_t half = nullptr;
  TR_CHECK(trCommSplit(comm, rank % 2, rank, &half, nullptr));
  float one = 1;
  TR_CHECK(trAllReduce(&one, &one, 1, trFloat32, trSum, half, nullptr));
  if (one != kRanks / 2) return say("a wrong sum after a split"), 104;
  TR_CHECK(trCommDestroy(half));
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(UnixTransport, RunsCollectivesThroughTheCApi) {
  add_transport(unix_row());
  expect_all_succeed(kRanks, run_collectives);
}

}  // namespace
}  // namespace treering::testing
