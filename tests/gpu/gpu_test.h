// SPDX-License-Identifier: Apache-2.0
// What the programs of the GPU suite share: their main() ends with 77, a skipped test, where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "device/device_checks.h"
#include "gpu/gpu_machine.h"

namespace treering::cuda {

// The machine; there is one when tests run.
inline GpuMachine* gpu() {
  std::string why_not;
  return gpu_machine(&why_not);
}

}  // namespace treering::cuda

// Programs that run themselves as another process have this instead of the default, which is 1.
extern int run_as_other_process(int argc, char** argv);
