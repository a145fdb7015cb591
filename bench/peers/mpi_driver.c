/* MPI_Allreduce on whichever MPI this file is compiled with: one rank for each process that mpirun starts. */
#include <mpi.h>

#include "measure.h"

static void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  fprintf(stderr, "error: %s returned %d\n", call, code);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void mpi_allreduce(void* context, const float* send, float* recv, size_t count) {
  (void)context;
  const void* input = send == recv ? MPI_IN_PLACE : (const void*)send;
  mpi_check(MPI_Allreduce(input, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
}

static void mpi_barrier(void* context) {
  (void)context;
  mpi_check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

static double mpi_max(void* context, double value) {
  (void)context;
  double result = 0;
  mpi_check(MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
  return result;
}

int main(int argc, char** argv) {
  mpi_check(MPI_Init(&argc, &argv), "MPI_Init");
  const struct points points = parse_arguments(argc, argv);
  struct library library = {.allreduce = mpi_allreduce, .barrier = mpi_barrier, .max = mpi_max};
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.ranks);
  float* send = malloc(points.max_bytes);
  float* recv = malloc(points.max_bytes);
  if (!send || !recv) {
    fprintf(stderr, "error: no memory for two buffers of %zu bytes\n", points.max_bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  measure_all(&library, &points, send, recv);
  free(send);
  free(recv);
  MPI_Finalize();
  return 0;
}
