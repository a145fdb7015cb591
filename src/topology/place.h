// SPDX-License-Identifier: Apache-2.0
// Placement of memory on NUMA nodes, by hwloc. A preference: where the system refuses (no such node, no
// permission, a kernel without NUMA) the memory stays usable where it is, and the Status says why.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace treering {

// Pages of [memory, memory + bytes) that are touched from now on come from the node (OS index), as long as it
// has room. Pages that lie only partly in the range are included. A negative node (unknown) does nothing.
Status bind_memory(void* memory, size_t bytes, int32_t numa_node);

// bind_memory(), then touches every page without changing its contents, so that the pages are there. No other
// thread may write the memory meanwhile. The pages are touched even where binding fails.
Status place_memory(void* memory, size_t bytes, int32_t numa_node);

}  // namespace treering
