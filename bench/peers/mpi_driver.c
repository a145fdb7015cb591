// SPDX-License-Identifier: Apache-2.0
/* The collectives of whichever MPI this file is compiled with: one rank for each process that mpirun starts. */
#include <mpi.h>

#include "measure.h"
#include "serve.h"

static void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  fprintf(stderr, "error: %s returned %d\n", call, code);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static enum collective g_collective;
static int g_ranks;
static int *g_counts, *g_offsets; /* equal blocks, for the v-variants */

static void set_blocks(size_t count) {
  if (g_ranks > 0 && g_counts[0] == (int)count) return;
  for (int r = 0; r < g_ranks; ++r) {
    g_counts[r] = (int)count;
    g_offsets[r] = r * (int)count;
  }
}

static void mpi_call(void* context, const float* send, float* recv, size_t elements) {
  (void)context;
  const MPI_Comm world = MPI_COMM_WORLD;
  const MPI_Datatype f = MPI_FLOAT;
  const int n = (int)elements;
  const void* input = send == recv ? MPI_IN_PLACE : (const void*)send;
  switch (g_collective) {
    case kAllReduce:
      mpi_check(MPI_Allreduce(input, recv, n, f, MPI_SUM, world), "MPI_Allreduce");
      break;
    case kReduce:
      mpi_check(MPI_Reduce(send, recv, n, f, MPI_SUM, 0, world), "MPI_Reduce");
      break;
    case kBroadcast:
      mpi_check(MPI_Bcast(recv, n, f, 0, world), "MPI_Bcast");
      break;
    case kAllGather:
      mpi_check(MPI_Allgather(send, n, f, recv, n, f, world), "MPI_Allgather");
      break;
    case kReduceScatter:
      mpi_check(MPI_Reduce_scatter_block(send, recv, n, f, MPI_SUM, world), "MPI_Reduce_scatter_block");
      break;
    case kAllToAll:
      mpi_check(MPI_Alltoall(send, n, f, recv, n, f, world), "MPI_Alltoall");
      break;
    case kGather:
      mpi_check(MPI_Gather(send, n, f, recv, n, f, 0, world), "MPI_Gather");
      break;
    case kScatter:
      mpi_check(MPI_Scatter(send, n, f, recv, n, f, 0, world), "MPI_Scatter");
      break;
    case kBarrier:
      mpi_check(MPI_Barrier(world), "MPI_Barrier");
      break;
    case kAllGatherV:
      set_blocks(elements);
      mpi_check(MPI_Allgatherv(send, n, f, recv, g_counts, g_offsets, f, world), "MPI_Allgatherv");
      break;
    case kReduceScatterV:
      set_blocks(elements);
      mpi_check(MPI_Reduce_scatter(send, recv, g_counts, f, MPI_SUM, world), "MPI_Reduce_scatter");
      break;
    case kAllToAllV:
      set_blocks(elements);
      mpi_check(MPI_Alltoallv(send, g_counts, g_offsets, f, recv, g_counts, g_offsets, f, world), "MPI_Alltoallv");
      break;
    case kGatherV:
      set_blocks(elements);
      mpi_check(MPI_Gatherv(send, n, f, recv, g_counts, g_offsets, f, 0, world), "MPI_Gatherv");
      break;
    case kScatterV:
      set_blocks(elements);
      mpi_check(MPI_Scatterv(send, g_counts, g_offsets, f, recv, n, f, 0, world), "MPI_Scatterv");
      break;
    case kCollectives:
      break;
  }
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
  struct library library = {.call = mpi_call, .barrier = mpi_barrier, .max = mpi_max};
  MPI_Comm_rank(MPI_COMM_WORLD, &library.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &library.ranks);
  g_collective = points.collective;
  g_ranks = library.ranks;
  g_counts = calloc((size_t)g_ranks, sizeof(int));
  g_offsets = calloc((size_t)g_ranks, sizeof(int));
  if (points.commands) {
    serve(&library, &points, NULL);
    MPI_Finalize();
    return 0;
  }
  const size_t bytes = buffer_bytes(&points, library.ranks);
  float* send = malloc(bytes);
  float* recv = malloc(bytes);
  if (!send || !recv || !g_counts || !g_offsets) {
    fprintf(stderr, "error: no memory for two buffers of %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  measure_all(&library, &points, send, recv);
  free(send);
  free(recv);
  MPI_Finalize();
  return 0;
}
