// SPDX-License-Identifier: Apache-2.0
// Where the CUDA driver is, also for what is compiled without CUDA's headers.
#pragma once

#include <cstdlib>

namespace treering::cuda {

inline constexpr const char* kDriverLibrary = "libcuda.so.1";
inline constexpr const char* kDriverVariable = "TREERING_CUDA_DRIVER";

inline const char* driver_path() {
  // Not for programs that run with more rights than their caller.
  const char* chosen = secure_getenv(kDriverVariable);
  return chosen != nullptr && *chosen != '\0' ? chosen : kDriverLibrary;
}

}  // namespace treering::cuda
