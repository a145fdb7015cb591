// SPDX-License-Identifier: Apache-2.0
/* All ranks of a communicator in one thread: creates it, sums a buffer, and prints what happened.
 *
 * usage: shim_client RANKS COUNT [REPETITIONS]
 */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                  \
  do {                                                               \
    ncclResult_t result_ = (call);                                   \
    if (result_ != ncclSuccess) {                                    \
      printf("error %d %s\n", (int)result_, ncclGetLastError(NULL)); \
      return 1;                                                      \
    }                                                                \
  } while (0)

int main(int argc, char** argv) {
  enum { kMaxRanks = 16 };
  const int ranks = argc > 1 ? atoi(argv[1]) : 2, repetitions = argc > 3 ? atoi(argv[3]) : 1;
  const size_t count = argc > 2 ? (size_t)atol(argv[2]) : 1;
  ncclComm_t comms[kMaxRanks];
  float* buffers[kMaxRanks];
  if (ranks < 1 || ranks > kMaxRanks) return 2;
  CHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    buffers[rank] = malloc(count * sizeof(float));
    if (buffers[rank] == NULL) return 2;
    for (size_t i = 0; i < count; i++) buffers[rank][i] = 1;
  }
  for (int repetition = 0; repetition < repetitions; repetition++) {
    CHECK(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++)
      CHECK(ncclAllReduce(buffers[rank], buffers[rank], count, ncclFloat32, ncclMax, comms[rank], NULL));
    CHECK(ncclGroupEnd());
  }
  CHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++)
    CHECK(ncclAllReduce(buffers[rank], buffers[rank], count, ncclFloat32, ncclSum, comms[rank], NULL));
  CHECK(ncclGroupEnd());
  printf("sum %g %g\n", buffers[0][0], buffers[ranks - 1][count - 1]);
  for (int rank = 0; rank < ranks; rank++) {
    CHECK(ncclCommDestroy(comms[rank]));
    free(buffers[rank]);
  }
  return 0;
}
