// SPDX-License-Identifier: Apache-2.0
// Allreduce through the C API with all ranks on one GPU: what the library adds to its kernels, and what it chooses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/gpu_machine.h"

namespace treering::cuda {

// Seconds of one of `repeats` allreduces of `bytes` of float32 on each of `ranks`, given to their streams one behind
// the other.
// `blocks`: of each rank; 0: as the library chooses.
double time_communicator(GpuMachine* machine, uint32_t ranks, size_t bytes, uint32_t repeats, uint32_t blocks);

}  // namespace treering::cuda
