// SPDX-License-Identifier: Apache-2.0
// OccupancyBudget: the blocks that the kernels of one communicator may have on a GPU at once, counted with those of all
// others of this process. Kernels of ranks that share a GPU wait for one another: all their blocks must fit it.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace treering {

class OccupancyBudget {
 public:
  // `ranks`: of the communicator, on the GPU; each has `channels` blocks.
  OccupancyBudget(const Device* device, uint32_t ranks, uint32_t channels);
  ~OccupancyBudget();
  OccupancyBudget(const OccupancyBudget&) = delete;
  OccupancyBudget& operator=(const OccupancyBudget&) = delete;

  // What a communicator whose ranks share the GPU takes of it at most, for each of them.
  static uint32_t most_channels(uint32_t multiprocessors, uint32_t ranks);

 private:
  const Device* device_;
  uint32_t blocks_;
};

}  // namespace treering
