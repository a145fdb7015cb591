// SPDX-License-Identifier: Apache-2.0
// ResidentBlocks: the blocks that the kernels of one communicator may have on a GPU at once, counted with those of all others of
// this process. Kernels of ranks that share a GPU wait for one another there, so all their blocks must fit it together.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace treering {

class ResidentBlocks {
 public:
  // `ranks`: of the communicator, on the GPU; each has `channels` blocks.
  ResidentBlocks(const Device* device, uint32_t ranks, uint32_t channels);
  ~ResidentBlocks();
  ResidentBlocks(const ResidentBlocks&) = delete;
  ResidentBlocks& operator=(const ResidentBlocks&) = delete;

  // What a communicator whose ranks share the GPU takes of it at most, for each of them.
  static uint32_t most_channels(uint32_t multiprocessors, uint32_t ranks);

 private:
  const Device* device_;
  uint32_t blocks_;
};

}  // namespace treering
