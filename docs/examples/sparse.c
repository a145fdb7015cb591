// SPDX-License-Identifier: Apache-2.0
/* A distributed array changes hands, and embedding gradients are summed by row. Two ranks. */
#include "ranks.h"

static void transpose(trComm_t comm, int rank) {
  /* A 4 x 6 array: each rank holds two rows and needs three columns. */
  const trBox_t rows = {.lo = {2 * rank, 0}, .hi = {2 * rank + 2, 6}};
  const trBox_t columns = {.lo = {0, 3 * rank}, .hi = {4, 3 * rank + 3}};
  float held[2][6], needed[4][3];
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 6; ++j) held[i][j] = (float)(10 * (2 * rank + i) + j);

  trExchange_t exchange; /* planned once, run many times */
  CHECK(trExchangeCreate(&exchange, 2, 1, &rows, 1, &columns, trFloat32, comm));
  const void* from[] = {held};
  void* to[] = {needed};
  CHECK(trExchangeStart(exchange, from, to, NULL));
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 3; ++j) EXPECT(needed[i][j] == (float)(10 * i + 3 * rank + j));
  CHECK(trExchangeDestroy(exchange));
}

static void ranks(trComm_t comm, int rank, int nranks) {
  transpose(comm, rank);

  /* Rows 5 and 100 on rank 0, 5 and 7 on rank 1; two elements each. */
  const int64_t indices[] = {5, rank == 0 ? 100 : 7};
  const float values[] = {1, 2, 3, 4};
  int64_t rows[4];
  float sums[8];
  size_t count;
  CHECK(trSparseAllReduce(indices, values, 2, 2, trFloat32, trSum, rows, sums, 4, &count, comm));
  EXPECT(count == 3 && rows[0] == 5 && rows[1] == 7 && rows[2] == 100);
  EXPECT(sums[0] == (float)nranks && sums[1] == 2.0f * (float)nranks && sums[2] == 3.0f && sums[5] == 4.0f);
}

int main(void) {
  run_ranks(2, ranks);
  return 0;
}
