// SPDX-License-Identifier: Apache-2.0
/* What a user of the installed library writes: two forked ranks, one allreduce. Exit status 0 when it is right. */
#include <stdio.h>
#include <sys/wait.h>
#include <treering/treering.h>
#include <unistd.h>

static int run(int rank, trUniqueId id) {
  float values[3] = {1.0f + (float)rank, 10.0f, -2.0f * (float)rank};
  trComm_t comm = NULL;
  trResult_t result = trCommInitRank(&comm, 2, id, rank);
  if (result == trSuccess) result = trAllReduce(values, values, 3, trFloat32, trSum, comm, NULL);
  if (result == trSuccess) result = trCommDestroy(comm);
  if (result != trSuccess) {
    fprintf(stderr, "rank %d: %s: %s\n", rank, trGetErrorString(result), trGetLastError(NULL));
    return 1;
  }
  if (values[0] != 3.0f || values[1] != 20.0f || values[2] != -2.0f) {
    fprintf(stderr, "rank %d: got %g %g %g\n", rank, values[0], values[1], values[2]);
    return 1;
  }
  return 0;
}

int main(void) {
  int version = 0;
  if (trGetVersion(&version) != trSuccess || version != TR_VERSION_CODE) {
    fprintf(stderr, "header %d, library %d\n", TR_VERSION_CODE, version);
    return 1;
  }
  /* The id reaches the child through a pipe: the child is forked before the library has started its thread. */
  int ends[2];
  if (pipe(ends) != 0) return 1;
  trUniqueId id;
  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    if (read(ends[0], &id, sizeof id) != (ssize_t)sizeof id) return 1;
    return run(1, id);
  }
  if (trGetUniqueId(&id) != trSuccess || write(ends[1], &id, sizeof id) != (ssize_t)sizeof id) return 1;
  int own = run(0, id), status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  if (own == 0 && WEXITSTATUS(status) == 0) printf("ok\n");
  return own != 0 || WEXITSTATUS(status) != 0;
}
