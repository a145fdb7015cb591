// SPDX-License-Identifier: Apache-2.0
// The device code on the CPU: one thread of this process for each thread of a block.
#pragma once

#include <vector>

#include "device/work.h"

namespace treering::cuda {

// Runs all blocks of the launch with `threads` threads each, and returns when they have ended. With a seed above 0,
// threads lose their processor at random moments.
void launch_on_cpu(const DeviceLaunch& launch, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                   uint32_t seed);

// Combines the sources, element by element, as a block of one thread does with a step's operands. `scale`: of the last
// source, or nullptr.
void combine_on_cpu(trDataType_t type, trRedOp_t op, const std::vector<const std::byte*>& sources, uint64_t count,
                    uint32_t divisor, const void* scale, std::byte* result);

}  // namespace treering::cuda
