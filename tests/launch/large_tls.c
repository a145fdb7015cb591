// SPDX-License-Identifier: Apache-2.0
/* A program with much thread-local data, which glibc puts on every thread's stack: the library's threads start and run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "treering/treering.h"

static __thread char large[TLS_KIB * 1024];

static int run(int rank, const int pipe_ends[2]) {
  trUniqueId id;
  trComm_t comm;
  trStream_t stream;
  float value = 1;
  setenv("TREERING_HOSTID", rank == 0 ? "a" : "b", 1);
  trResult_t result = trSuccess;
  if (rank == 0) {
    result = trGetUniqueId(&id);
    if (write(pipe_ends[1], &id, sizeof id) != sizeof id) return 2;
  } else if (read(pipe_ends[0], &id, sizeof id) != sizeof id) {
    return 2;
  }
  if (result == trSuccess) result = trCommInitRank(&comm, 2, id, rank);
  if (result == trSuccess) result = trStreamCreate(&stream);
  if (result == trSuccess) result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream);
  if (result == trSuccess) result = trStreamSynchronize(stream);
  if (result != trSuccess) fprintf(stderr, "rank %d: %s\n", rank, trGetLastError(NULL));
  return result != trSuccess || value != 2;
}

int main(void) {
  int pipe_ends[2], failures = 0;
  memset(large, 1, sizeof large);
  setenv("TREERING_TIMEOUT", "20", 1);
  if (pipe(pipe_ends) != 0) return 2;
  for (int rank = 0; rank < 2; ++rank)
    if (fork() == 0) _exit(run(rank, pipe_ends));
  for (int status; wait(&status) > 0;) {
    if (WIFSIGNALED(status)) fprintf(stderr, "a rank was ended by signal %d\n", WTERMSIG(status));
    failures += status != 0;
  }
  printf("%d KiB of thread-local data: %d of 2 ranks failed\n", TLS_KIB, failures);
  return failures;
}
