// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/registered_regions.h"

#include <fmt/format.h>

#include "transport/verbs/link.h"
#include "transport/verbs/locked_memory.h"

namespace treering::verbs {

bool RegisteredRegions::knows(uint32_t id) const {
  std::lock_guard lock(mutex_);
  return entries_.contains(id);
}

// It takes seconds for many GiB; meanwhile other threads may end other regions.
Status RegisteredRegions::add(const Region& region, size_t room) {
  {
    std::lock_guard lock(mutex_);
    if (!entries_.try_emplace(region.id).second) return {};
  }
  if (region.bytes > room / devices_.size())
    return {trSystemError,
            fmt::format("{} KiB may still be locked beside what peers need{}{}", room >> 10,
                        devices_.size() > 1 ? fmt::format(", and each of {} rails locks it", devices_.size()) : "",
                        locked_memory_text())};
  RailMemory registered;
  TR_RETURN_IF_ERROR(registered.make(devices_, kAllRails, region.base, region.bytes,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING));
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(region.id);
  if (found == entries_.end()) return {};  // it ended meanwhile
  const Place place{region.base, region.bytes, registered.local_keys(), registered.remote_keys()};
  found->second = {place, std::move(registered)};
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

Status Card::find_payload(const Message& message, Payload* payload) const {
  if (message.kind == PayloadKind::kStaging) {
    *payload = {staging->base() + message.user.offset, message.bytes, {}};
    return staging->keys(message.user.offset, &payload->keys);
  }
  const auto place = regions->find(message.user.region);
  if (!place || message.user.offset > place->bytes || message.bytes > place->bytes - message.user.offset)
    return {trInvalidUsage,
            "registered memory that this call uses was freed, or its registration ended, while the call runs"};
  *payload = {place->base + message.user.offset, message.bytes, place->keys};
  return {};
}

}  // namespace treering::verbs
