// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/registered_regions.h"

#include <fmt/format.h>

#include "transport/verbs/locked_memory.h"

namespace treering::verbs {

bool RegisteredRegions::knows(uint32_t id) const {
  std::lock_guard lock(mutex_);
  return entries_.contains(id);
}

Status RegisteredRegions::add(const Region& region, size_t room) {
  std::lock_guard lock(mutex_);
  const auto [found, is_new] = entries_.try_emplace(region.id);
  if (!is_new) return {};
  Entry& entry = found->second;
  if (region.bytes > room)
    return {trSystemError, fmt::format("{} KiB may still be locked beside what peers need{}", room >> 10,
                                       locked_memory_text())};
  TR_RETURN_IF_ERROR(device_.register_memory(region.base, region.bytes, 0, &entry.registered));
  entry.place = {region.base, region.bytes, entry.registered.local_key()};
  return {};
}

std::optional<RegisteredRegions::Place> RegisteredRegions::find(uint32_t id) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.registered) return {};
  return found->second.place;
}

void RegisteredRegions::end(uint32_t id) {
  std::lock_guard lock(mutex_);
  entries_.erase(id);
}

}  // namespace treering::verbs
