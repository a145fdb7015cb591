// SPDX-License-Identifier: Apache-2.0
#include "communicator/memory.h"

#include <fmt/format.h>

#include "transport/address_space.h"
#include "transport/region.h"

namespace treering {
namespace {

bool is_in_region(const std::byte* begin, size_t bytes) {
  const Region region = RegionTable::instance().find(begin, bytes);
  return region.id != 0 && begin >= region.base && begin + bytes <= region.base + region.bytes;
}

// A GPU would go on to use the pages that were there before, not those that are moved in.
Status check_unpinned(const void* buffer, size_t bytes, const IsPinned& is_pinned) {
  const auto address = reinterpret_cast<uintptr_t>(buffer);
  if (!is_pinned || address + bytes < address) return {};
  const uintptr_t begin = (address + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t end = (address + bytes) / kPageBytes * kPageBytes;
  // What is not moved for another reason is not looked at.
  const auto* pages = reinterpret_cast<const std::byte*>(begin);
  if (begin >= end || !check_plain_anonymous(pages, end - begin).ok() || is_in_region(pages, end - begin)) return {};
  for (uintptr_t page = begin; page < end; page += kPageBytes)
    if (is_pinned(pages + (page - begin)))
      return {
          trInvalidArgument,
          fmt::format("the buffer {} of {} bytes is pinned by CUDA at {:#x} (cudaHostRegister, cudaMallocHost): its "
                      "pages cannot be moved. Register memory before it is pinned, or use that of trMemAlloc",
                      buffer, bytes, page)};
  return {};
}

}  // namespace

Status allocate_memory(size_t bytes, void** pointer) { return RegionTable::instance().allocate(bytes, pointer); }
Status free_memory(void* pointer) { return RegionTable::instance().release(pointer); }
Status register_memory(void* buffer, size_t bytes, const IsPinned& is_pinned, uint32_t* id) {
  TR_RETURN_IF_ERROR(check_unpinned(buffer, bytes, is_pinned));
  return RegionTable::instance().move_in_place(buffer, bytes, id);
}
Status deregister_memory(uint32_t id) { return RegionTable::instance().end_registration(id); }

}  // namespace treering
