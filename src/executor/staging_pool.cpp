#include "executor/staging_pool.h"

#include <algorithm>

namespace treering {
namespace {
constexpr uint32_t kMinSlots = 4;
constexpr size_t kSlotAlignment = 64;
}  // namespace

StagingPool::StagingPool(std::byte* memory, size_t offset, size_t bytes, uint32_t peers)
    : memory_(memory + offset), offset_(offset), slots_(std::max(kMinSlots, 2 * peers)) {
  slot_bytes_ = bytes / slots_ / kSlotAlignment * kSlotAlignment;
  readers_.resize(slots_);
  for (auto& readers : readers_) readers.reserve(peers);
}

bool StagingPool::is_free(uint32_t index) {
  auto& readers = readers_[index];
  while (!readers.empty()) {
    if (!readers.back().connection->has_consumed(readers.back().target)) return false;
    readers.pop_back();
  }
  return true;
}

int StagingPool::find_free() {
  for (uint32_t i = 0, at = next_; i < slots_; ++i, at = at + 1 == slots_ ? 0 : at + 1)
    if (is_free(at)) return static_cast<int>(at);
  return kNone;
}

}  // namespace treering
