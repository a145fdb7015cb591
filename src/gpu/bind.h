// SPDX-License-Identifier: Apache-2.0
// Bind: what the host prepares for a launch: how a call is cut so that its messages fit the slots, and the image of the
// compiled programs as the kernel reads it. No CUDA: the same for GPUs and for the CPU stand-in of the tests.
#pragma once

#include <vector>

#include "device/work.h"
#include "executor/execution.h"

namespace treering::cuda {

// Fills slicing, layout, ranks, channels and `elides` of the call. False when the messages do not fit.
bool bind_device_call(const Program& program, const Layout& layout, size_t element_bytes, DeviceProtocol protocol,
                      size_t message_bytes, size_t min_slice_bytes, DeviceCall* call);

// Bytes of the scratch that each channel of a bound call needs; 0: none.
size_t device_scratch_bytes(const Program& program, const DeviceCall& call, size_t element_bytes);

// The programs of all channels, DeviceProgram of channel 0 first, with the pointers that they have at address `base`.
std::vector<std::byte> program_image(const Program& program, uint64_t base);

// The largest number of peers that a step receives from or sends to.
uint32_t most_peers(const Program& program);

}  // namespace treering::cuda
