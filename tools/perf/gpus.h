// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, and which rank has which.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "options.h"

namespace treering::perf {

struct Gpu {
  char name[64] = {};
  char bus[20] = {};  // "0000:65:00.0"
  size_t memory_bytes = 0;
};

// Those that the CUDA driver and the library can use. None, and `why_not`, where there are none.
std::vector<Gpu> list_gpus(std::string* why_not);
// The same, asked for by a child: the calling process may fork afterwards.
std::vector<Gpu> list_gpus_elsewhere(std::string* why_not);

// Ranks of a machine take its GPUs in turn.
inline int gpu_of(int local_rank, size_t gpus) { return local_rank % static_cast<int>(gpus); }

// What is wrong with buffers of `sharing` ranks on the GPU of that number, or "".
std::string check_gpu_memory(const Options& options, int sharing, int number, const Gpu& gpu);

}  // namespace treering::perf
