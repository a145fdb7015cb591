// SPDX-License-Identifier: Apache-2.0
// Memory that peers can map, as the C API offers it (transport/region.h does the work).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/status.h"

namespace treering {

// Zeroed, page aligned, shareable.
Status allocate_memory(size_t bytes, void** pointer);
Status free_memory(void* pointer);

// Whether a GPU has the page in use, which then cannot be moved; empty: none has any.
using IsPinned = std::function<bool(const void* page)>;
// Moves ordinary memory into shareable memory, in place; *id is 0 when there is nothing to do.
Status register_memory(void* buffer, size_t bytes, const IsPinned& is_pinned, uint32_t* id);
Status deregister_memory(uint32_t id);

}  // namespace treering
