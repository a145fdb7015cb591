// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/ranks/members.h"

#include <algorithm>
#include <utility>

namespace treering {

std::shared_ptr<Member> Members::find(uint32_t rank) const {
  const auto found = members_.find(rank);
  return found == members_.end() ? nullptr : found->second;
}

bool Members::all_have_left() const {
  return std::all_of(members_.begin(), members_.end(), [this](const auto& member) { return has_left(member.first); });
}

bool Members::any_creates() const {
  return std::any_of(members_.begin(), members_.end(),
                     [this](const auto& member) { return member.second->creates && !has_left(member.first); });
}

bool Members::leave(uint32_t rank) {
  if (!left_.insert(rank).second) return false;
  for (auto [at, end] = members_.equal_range(rank); at != end; ++at) {
    at->second->events = {};
    at->second->has_events = true;  // what came and comes is dropped
    for (auto& event : std::exchange(at->second->waiting, {})) event(at->second->events);
  }
  return true;
}

void Members::fail(const Status& status) const {
  change([&](Member& member) {
    if (member.failure.ok()) member.failure = status;
  });
}

void Members::tell(const std::function<void(const MemberEvents&)>& event) const {
  for (const auto& [rank, member] : members_) member->tell(event);
}

void Members::tree_changed() const {
  for (const auto& [rank, member] : members_) {
    std::lock_guard lock(member->mutex);
    if (member->questions) member->questions->tree_changed();
  }
}

void Members::ticks(Clock::time_point now) const {
  for (const auto& [rank, member] : members_) {
    std::lock_guard lock(member->mutex);
    member->ticked = now;
  }
}

void Members::ends_tick(const OwnPause* pause) const {
  for (const auto& [rank, member] : members_) {
    std::lock_guard lock(member->mutex);
    member->ticked.reset();
    if (pause != nullptr) member->own_pause = *pause;
  }
}

}  // namespace treering
