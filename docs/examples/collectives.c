// SPDX-License-Identifier: Apache-2.0
/* Every collective once, four ranks. */
#include "ranks.h"

static void ranks(trComm_t comm, int rank, int nranks) {
  int all[4], mine = rank, sum = 0, block[4];
  CHECK(trReduce(&mine, &sum, 1, trInt32, trSum, /*root=*/2, comm, NULL));
  if (rank == 2) EXPECT(sum == 0 + 1 + 2 + 3);

  int word = rank == 0 ? 42 : 0;
  CHECK(trBroadcast(&word, &word, 1, trInt32, /*root=*/0, comm, NULL));
  EXPECT(word == 42);

  CHECK(trAllGather(&mine, all, 1, trInt32, comm, NULL));
  for (int r = 0; r < nranks; ++r) EXPECT(all[r] == r);

  for (int r = 0; r < nranks; ++r) block[r] = 10 * r + rank; /* block r is summed on rank r */
  CHECK(trReduceScatter(block, &sum, 1, trInt32, trSum, comm, NULL));
  EXPECT(sum == 4 * 10 * rank + 6);

  CHECK(trAllToAll(block, all, 1, trInt32, comm, NULL)); /* block d goes to rank d */
  for (int r = 0; r < nranks; ++r) EXPECT(all[r] == 10 * rank + r);

  CHECK(trGather(&mine, all, 1, trInt32, /*root=*/3, comm, NULL));
  if (rank == 3)
    for (int r = 0; r < nranks; ++r) EXPECT(all[r] == r);

  CHECK(trScatter(all, &mine, 1, trInt32, /*root=*/3, comm, NULL));
  EXPECT(mine == rank);

  CHECK(trBarrier(comm, NULL));
}

int main(void) {
  run_ranks(4, ranks);
  return 0;
}
