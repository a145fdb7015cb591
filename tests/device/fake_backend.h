// SPDX-License-Identifier: Apache-2.0
// The CUDA backend on the fake driver (fake_driver/fake_cuda.h).
#pragma once

#include <string>

#include "device/fake_driver/fake_cuda.h"
#include "device/open_backend.h"

namespace treering::cuda {

// This process's driver. Called before the first open_cuda_backend(), it makes that the driver that is found.
FakeCuda& fake_cuda();

// Device `ordinal` of the backend on the fake driver; ends the process where there is none.
Device* fake_device(int ordinal = 0);

// A function of the fake driver itself.
void* fake_function(const char* name);

}  // namespace treering::cuda
