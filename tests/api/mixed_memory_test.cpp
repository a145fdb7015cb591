// SPDX-License-Identifier: Apache-2.0
// Ranks whose buffers are of different kinds decide alone how they send and receive; the data arrives all the same.
#include <numeric>
#include <vector>

#include "support/processes.h"

namespace treering::testing {
namespace {

// Bytes of a block on either side of every limit: inline, small messages with and without mapped memory, the kernel's
// copies.
constexpr size_t kBlocks[] = {4, 32, 36, 288, 292, 4096, 4100, 16380, 16384, 16388, 70'000, 1'200'000};

void fill(float* values, size_t count, int rank) { std::iota(values, values + count, static_cast<float>(rank * 1000)); }

int exchange_all(int rank, int ranks, trComm_t comm, float* in, float* out, size_t count) {
  const auto n = static_cast<size_t>(ranks);
  const auto at = [](float* base, size_t i, size_t c) { return base[i * c] * 10 + base[i * c + c - 1]; };
  fill(in, n * count, rank);
  const auto expected = [&](size_t source, size_t block) {
    const float first = static_cast<float>(source * 1000 + block * count);
    return first * 10 + first + static_cast<float>(count - 1);
  };
  const auto own = static_cast<size_t>(rank);
  TR_CHECK(trAllToAll(in, out, count, trFloat32, comm, nullptr));
  for (size_t s = 0; s < n; ++s)
    if (at(out, s, count) != expected(s, own)) return say("alltoall of " + std::to_string(count)), 1;
  TR_CHECK(trAllGather(in, out, count, trFloat32, comm, nullptr));
  for (size_t s = 0; s < n; ++s)
    if (at(out, s, count) != expected(s, 0)) return say("allgather of " + std::to_string(count)), 2;
  TR_CHECK(trScatter(in, out, count, trFloat32, 1, comm, nullptr));
  if (at(out, 0, count) != expected(1, own)) return say("scatter of " + std::to_string(count)), 3;
  TR_CHECK(trGather(in, out, count, trFloat32, 2, comm, nullptr));
  for (size_t s = 0; s < n && rank == 2; ++s)
    if (at(out, s, count) != expected(s, 0)) return say("gather of " + std::to_string(count)), 4;
  TR_CHECK(trReduceScatter(in, out, count, trFloat32, trMax, comm, nullptr));
  if (at(out, 0, count) != expected(n - 1, own)) return say("reduce-scatter of " + std::to_string(count)), 5;
  const std::vector<size_t> counts(n, count);
  TR_CHECK(trAllToAllV(in, counts.data(), nullptr, out, counts.data(), nullptr, trFloat32, comm, nullptr));
  for (size_t s = 0; s < n; ++s)
    if (at(out, s, count) != expected(s, own)) return say("alltoallv of " + std::to_string(count)), 6;
  return 0;
}

TEST(MixedMemory, RankOfMappedBuffersAmongRanksOfOrdinaryOnes) {
  constexpr int kRanks = 3;
  expect_all_succeed(kRanks, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    for (size_t bytes : kBlocks) {
      const size_t count = bytes / sizeof(float);
      std::vector<float> ordinary(2 * kRanks * count);
      void* mapped = nullptr;
      if (rank == 1) TR_CHECK(trMemAlloc(&mapped, 2 * kRanks * bytes));
      // That a rank has mapped memory changes what it does with its ordinary buffers, too.
      for (float* in : {rank == 1 ? static_cast<float*>(mapped) : ordinary.data(), ordinary.data()})
        for (int time = 0; time < 3; ++time)
          if (int code = exchange_all(rank, kRanks, comm, in, in + kRanks * count, count); code != 0) return code;
      TR_CHECK(trBarrier(comm, nullptr));
      TR_CHECK(trMemFree(mapped));
    }
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
}

}  // namespace
}  // namespace treering::testing
