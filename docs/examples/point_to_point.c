// SPDX-License-Identifier: Apache-2.0
/* Sends and receives: one by one, as a pair, and many at once in a group. Four ranks. */
#include "ranks.h"

static void ranks(trComm_t comm, int rank, int nranks) {
  int value = 0;
  if (rank == 0) {
    value = 7;
    CHECK(trSend(&value, 1, trInt32, /*peer=*/1, comm, NULL));
  } else if (rank == 1) {
    CHECK(trRecv(&value, 1, trInt32, /*peer=*/0, comm, NULL));
    EXPECT(value == 7);
  }

  const int next = (rank + 1) % nranks, previous = (rank + nranks - 1) % nranks;
  CHECK(trSendRecv(&rank, 1, next, &value, 1, previous, trInt32, comm, NULL));
  EXPECT(value == previous);

  /* In a group the order does not matter: nothing starts before its end, and all run at once. */
  int out[4], in[4];
  CHECK(trGroupStart());
  for (int r = 0; r < nranks; ++r) {
    out[r] = 10 * rank + r;
    CHECK(trRecv(&in[r], 1, trInt32, r, comm, NULL));
    CHECK(trSend(&out[r], 1, trInt32, r, comm, NULL));
  }
  CHECK(trGroupEnd());
  for (int r = 0; r < nranks; ++r) EXPECT(in[r] == 10 * r + rank);
}

int main(void) {
  run_ranks(4, ranks);
  return 0;
}
