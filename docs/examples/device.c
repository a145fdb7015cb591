/* Buffers in the memory of GPUs, ordered by a CUDA stream. Two ranks. Where there is no GPU it says so. */
#include "ranks.h"

enum { kCount = 1024 };

static trUniqueId id;

static void ranks(trComm_t host, int rank, int nranks) {
  int gpus = 0;
  CHECK(trDeviceCount(&gpus));
  if (gpus == 0) {
    printf("rank %d: no GPU\n", rank);
    return;
  }
  if (rank == 0) CHECK(trGetUniqueId(&id));
  CHECK(trBarrier(host, NULL)); /* the ranks are threads: all see the id */

  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device = rank % gpus;
  trComm_t comm;
  CHECK(trCommInitRankConfig(&comm, nranks, id, rank, &config));
  void* gradients = NULL;
  CHECK(trDeviceMemAlloc(&gradients, kCount * sizeof(float), config.device));
  int current = -1; /* of this thread, as cudaSetDevice() left it */
  CHECK(trDeviceCurrent(&current));
  trStream_t stream; /* of the default stream; a program names a cudaStream_t of its own */
  CHECK(trStreamFromCuda(&stream, config.device, NULL));
  CHECK(trAllReduce(gradients, gradients, kCount, trFloat32, trAvg, comm, stream));
  CHECK(trStreamSynchronize(stream)); /* or cudaStreamSynchronize() */
  float mean = -1;
  CHECK(trDeviceMemCopy(&mean, gradients, sizeof mean, stream));
  EXPECT(mean == 0); /* new memory is zero */

  CHECK(trStreamDestroy(stream));
  CHECK(trDeviceMemFree(gradients));
  CHECK(trCommDestroy(comm));
}

int main(void) {
  run_ranks(2, ranks);
  return 0;
}
