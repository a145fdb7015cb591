// SPDX-License-Identifier: Apache-2.0
// The physical limit of an allreduce on host memory, measured where and when the allreduce is.
//
// Every rank copies its own input to its own output, all at once: that reads each input once and writes each
// output once, which no allreduce can do without. The copy uses ordinary and non-temporal stores in turn and
// the faster counts, at the same size as the row, so that small sizes are held against the caches and large
// ones against memory.
#pragma once

#include <cstddef>

#include "rank_group.h"

namespace treering::perf {

// GB/s (reads and writes) that all ranks reached together copying `bytes` bytes each. Collective over the
// group.
double measure_copy_bandwidth(RankGroup& group, const void* from, void* to, size_t bytes);

}  // namespace treering::perf
