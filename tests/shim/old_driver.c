// SPDX-License-Identifier: Apache-2.0
/* In place of libcuda.so.1: a driver that has GPUs (OLD_DRIVER_GPUS) and is too old to be used. */
#include <stdlib.h>

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGetCount(int* count) {
  const char* gpus = getenv("OLD_DRIVER_GPUS");
  *count = gpus != NULL ? atoi(gpus) : 0;
  return 0;
}
