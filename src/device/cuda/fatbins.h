// SPDX-License-Identifier: Apache-2.0
// Fatbins: the compiled kernels of each data type, as they lie in this shared object.
#pragma once

#include <cstddef>
#include <span>

#include "treering/treering.h"

namespace treering::cuda {

struct Fatbin {
  trDataType_t type;
  const char* name;  // the kernels are treering_<name>_ll, _ll128 and _simple
  const void* image;
  size_t bytes;
};

// One for each row of TR_DEVICE_TYPES (kernels.h).
std::span<const Fatbin> fatbins();

}  // namespace treering::cuda
