// SPDX-License-Identifier: Apache-2.0
/* A process that a launcher has started: mpirun -n 4 from_environment, srun -n 4 --mpi=pmi2 from_environment, ... */
#include "ranks.h"

int main(void) {
  trComm_t comm;
  CHECK(trCommInitFromEnvironment(&comm, NULL));

  int rank, nranks;
  CHECK(trCommRank(comm, &rank));
  CHECK(trCommCount(comm, &nranks));
  double sum = rank + 1;
  CHECK(trAllReduce(&sum, &sum, 1, trFloat64, trSum, comm, NULL));
  EXPECT(sum == nranks * (nranks + 1) / 2.0);

  CHECK(trCommDestroy(comm));
  printf("rank %d of %d: ok\n", rank, nranks);
  return 0;
}
