// SPDX-License-Identifier: Apache-2.0
/* Two processes: the id travels through a pipe, each process is one rank, the gradients are summed in place. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <treering/treering.h>
#include <unistd.h>

static void check(trResult_t result) {
  if (result == trSuccess) return;
  fprintf(stderr, "%s: %s\n", trGetErrorString(result), trGetLastError(NULL));
  exit(1);
}

static void run(int rank, trUniqueId id) {
  trComm_t comm;
  check(trCommInitRank(&comm, 2, id, rank));

  /* Memory that the other ranks map: collectives on it copy nothing. */
  float* gradients;
  const size_t count = 1 << 20;
  check(trMemAlloc((void**)&gradients, count * sizeof *gradients));
  for (size_t i = 0; i < count; ++i) gradients[i] = (float)(rank + 1);
  check(trAllReduce(gradients, gradients, count, trFloat32, trSum, comm, NULL));
  printf("rank %d: the sum of 1 and 2 is %g\n", rank, gradients[count - 1]);
  fflush(stdout);
  if (gradients[count - 1] != 3.0f) exit(1);

  /* Memory of malloc() becomes as fast when it is registered. */
  float* ordinary = malloc(count * sizeof *ordinary);
  void* registration;
  if (ordinary == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) ordinary[i] = 1.0f;
  check(trCommRegister(comm, ordinary, count * sizeof *ordinary, &registration));
  check(trAllReduce(ordinary, gradients, count, trFloat32, trAvg, comm, NULL));
  if (gradients[0] != 1.0f) exit(1);
  check(trCommDeregister(comm, registration));
  free(ordinary);

  check(trMemFree(gradients));
  check(trCommDestroy(comm));
}

int main(void) {
  int version, ends[2], status;
  check(trGetVersion(&version));
  printf("treering %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
  fflush(stdout); /* or the child would print it, too */

  if (pipe(ends) != 0) return 1;
  trUniqueId id;
  pid_t child = fork(); /* before the library starts a thread */
  if (child < 0) return 1;
  if (child == 0) {
    close(ends[1]); /* read() ends if the parent does before it has written */
    if (read(ends[0], &id, sizeof id) != (ssize_t)sizeof id) return 1;
    run(1, id);
    return 0;
  }
  close(ends[0]);
  check(trGetUniqueId(&id));
  if (write(ends[1], &id, sizeof id) != (ssize_t)sizeof id) return 1;
  run(0, id);
  if (waitpid(child, &status, 0) != child || status != 0) return 1;
  printf("ok\n");
  return 0;
}
