// SPDX-License-Identifier: Apache-2.0
// main() of the programs of the GPU suite that test communicators: the C API alone, with the library as it is
// installed.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/device_rank_checks.h"

int main(int argc, char** argv) {
  // As many queues as there are streams whose kernels wait for one another, whatever the driver's default is.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::string why_not;
  const int gpus = treering::testing::count_gpus_elsewhere(&why_not);
  if (gpus == 0) {
    std::printf("GPU suite not run: %s\n", why_not.c_str());
    return 77;
  }
  std::printf("%d GPUs\n", gpus);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
