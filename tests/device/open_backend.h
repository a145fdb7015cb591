// SPDX-License-Identifier: Apache-2.0
// libtreering-cuda of this build, as the library opens it.
#pragma once

#include <string>

#include "device/device.h"

namespace treering::cuda {

// nullptr where there is no usable device; `why_not`: what it said.
DeviceBackend* open_cuda_backend(std::string* why_not, uint32_t version = kDeviceInterface);

// The path of it.
const char* cuda_library();

// A shared object, or a function of one; end the process where there is none.
void* open_library(const char* path);
void* find_function(void* library, const char* name);

}  // namespace treering::cuda
