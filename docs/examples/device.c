// SPDX-License-Identifier: Apache-2.0
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

  /* A sum of each rank's gradients times a weight that the GPU itself computes, behind whatever the stream holds. */
  trRedOp_t weighted;
  void* weight = NULL;
  CHECK(trDeviceMemAlloc(&weight, sizeof(float), config.device));
  CHECK(trRedOpCreatePreMulSumDevice(&weighted, weight, trFloat32, comm));
  const float one = 1, half = 0.5f; /* in place of kernels that would write both */
  CHECK(trDeviceMemCopy(gradients, &one, sizeof one, stream));
  CHECK(trDeviceMemCopy(weight, &half, sizeof half, stream));
  CHECK(trAllReduce(gradients, gradients, kCount, trFloat32, weighted, comm, stream));
  float sum = -1;
  CHECK(trDeviceMemCopy(&sum, gradients, sizeof sum, stream));
  EXPECT(sum == nranks * half);
  CHECK(trRedOpDestroy(weighted, comm));
  CHECK(trDeviceMemFree(weight));

  CHECK(trStreamDestroy(stream));
  CHECK(trDeviceMemFree(gradients));
  CHECK(trCommDestroy(comm));
}

int main(void) {
  run_ranks(2, ranks);
  return 0;
}
