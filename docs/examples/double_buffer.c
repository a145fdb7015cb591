// SPDX-License-Identifier: Apache-2.0
/* Training that hides the allreduce of step k behind the computation of step k + 1. Two ranks. */
#include "ranks.h"

static void compute_gradients(float* weights, float* biases, int rank, int step) {
  for (int i = 0; i < 1000; ++i) weights[i] = (float)(step + rank);
  for (int i = 0; i < 10; ++i) biases[i] = (float)(step - rank);
}

static void ranks(trComm_t comm, int rank, int nranks) {
  static float weights[2][2][1000], biases[2][2][10]; /* of each rank two sets, used in turn */
  trDoubleBuffer_t buffer;
  CHECK(trDoubleBufferCreate(&buffer, comm, trFloat32, /*flags=*/0, /*compression=*/NULL));

  const size_t counts[] = {1000, 10};
  const float stale = (float)(nranks - 1) / 2; /* the mean of the ranks */
  int ready;
  for (int step = 0; step < 5; ++step) {
    void* tensors[] = {weights[rank][step % 2], biases[rank][step % 2]};
    compute_gradients(tensors[0], tensors[1], rank, step);
    CHECK(trDoubleBufferExchange(buffer, 2, tensors, counts, &ready));
    EXPECT(ready == (step > 0)); /* the first exchange has nothing to give yet */
    if (!ready) continue;
    const float* mean = tensors[0]; /* of the step before */
    EXPECT(mean[0] == (float)(step - 1) + stale);
  }
  void* last[2];
  CHECK(trDoubleBufferFlush(buffer, 2, last, &ready));
  EXPECT(ready && ((float*)last[1])[9] == 4.0f - stale);
  CHECK(trDoubleBufferDestroy(buffer));
}

int main(void) {
  run_ranks(2, ranks);
  return 0;
}
