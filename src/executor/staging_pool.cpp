// SPDX-License-Identifier: Apache-2.0
#include "executor/staging_pool.h"

#include <algorithm>

namespace treering {
namespace {
constexpr uint32_t kMinSlots = 4;
constexpr size_t kSlotAlignment = 64;
// Up to so many slots are all open from the beginning; of more, only some.
constexpr uint32_t kAllOpen = 64;
constexpr uint32_t kOpenAtOnce = 16;
// Readers of a slot for which there is room at once: of many ranks each sends a value to few.
constexpr uint32_t kUsualReaders = 64;
constexpr uint32_t kFewReaders = 8;
}  // namespace

size_t StagingPool::slot_bytes_of(size_t bytes, uint32_t peers) {
  return bytes / std::max(kMinSlots, 2 * peers) / kSlotAlignment * kSlotAlignment;
}

size_t StagingPool::usual_bytes(size_t bytes, uint32_t peers) {
  const uint32_t slots = std::max(kMinSlots, 2 * peers);
  return slots <= kAllOpen ? bytes : kOpenAtOnce * slot_bytes_of(bytes, peers);
}

StagingPool::StagingPool(std::byte* memory, size_t offset, size_t bytes, uint32_t peers)
    : memory_(memory + offset),
      offset_(offset),
      slot_bytes_(slot_bytes_of(bytes, peers)),
      slots_(std::max(kMinSlots, 2 * peers)),
      peers_(peers) {
  open(slots_ <= kAllOpen ? slots_ : kOpenAtOnce);
}

void StagingPool::open(uint32_t slots) {
  const size_t before = readers_.size();
  readers_.resize(slots);
  for (size_t i = before; i < readers_.size(); ++i) readers_[i].reserve(peers_ <= kUsualReaders ? peers_ : kFewReaders);
}

bool StagingPool::is_free(uint32_t index) {
  auto& readers = readers_[index];
  while (!readers.empty()) {
    if (!readers.back().connection->has_released(readers.back().target)) return false;
    readers.pop_back();
  }
  return true;
}

int StagingPool::find_free() {
  const uint32_t opened = open_slots();
  for (uint32_t i = 0, at = next_; i < opened; ++i, at = at + 1 == opened ? 0 : at + 1)
    if (is_free(at)) return static_cast<int>(at);
  if (opened == slots_) return kNone;
  open(std::min(slots_, opened + kOpenAtOnce));
  return static_cast<int>(opened);
}

}  // namespace treering
