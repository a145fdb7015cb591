// SPDX-License-Identifier: Apache-2.0
/* The v-variants: rank r has r + 1 elements. Three ranks, blocks one after another or at displacements. */
#include "ranks.h"

static void ranks(trComm_t comm, int rank, int nranks) {
  const size_t counts[] = {1, 2, 3}, apart[] = {0, 4, 8};
  const size_t own = counts[rank];
  double mine[3], all[12];
  for (size_t i = 0; i < own; ++i) mine[i] = rank;

  CHECK(trAllGatherV(mine, own, all, counts, apart, trFloat64, comm, NULL));
  for (int r = 0; r < nranks; ++r)
    for (size_t i = 0; i < counts[r]; ++i) EXPECT(all[apart[r] + i] == r);

  const double ones[] = {1, 1, 1, 1, 1, 1}; /* 1 + 2 + 3 elements */
  CHECK(trReduceScatterV(ones, mine, counts, trFloat64, trSum, comm, NULL));
  for (size_t i = 0; i < own; ++i) EXPECT(mine[i] == nranks);

  CHECK(trGatherV(mine, own, all, counts, NULL, trFloat64, /*root=*/0, comm, NULL));
  CHECK(trScatterV(all, counts, NULL, mine, own, trFloat64, /*root=*/0, comm, NULL));
  for (size_t i = 0; i < own; ++i) EXPECT(mine[i] == nranks);

  /* Rank s sends d + 1 elements to rank d, and so receives rank + 1 elements from everyone. */
  double out[6], in[9];
  size_t each[3];
  for (int i = 0; i < 6; ++i) out[i] = rank;
  for (int r = 0; r < nranks; ++r) each[r] = own;
  CHECK(trAllToAllV(out, counts, NULL, in, each, NULL, trFloat64, comm, NULL));
  for (int r = 0; r < nranks; ++r)
    for (size_t i = 0; i < own; ++i) EXPECT(in[(size_t)r * own + i] == r);
}

int main(void) {
  run_ranks(3, ranks);
  return 0;
}
