// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/staging_memory.h"

#include <bit>

#include "gpu/memory/deferred_free.h"

namespace treering {

void StagingMemory::free_all() {
  std::lock_guard lock(mutex_);
  if (stays_) return;
  for (const auto& [bytes, address] : free_) DeferredFree::instance().free_host(device_, address);
  free_.clear();
}

Status StagingMemory::lend(size_t bytes, Block* block) {
  constexpr size_t kMin = 4096;
  block->bytes = std::bit_ceil(std::max(bytes, kMin));
  {
    std::lock_guard lock(mutex_);
    ++lent_;
    if (auto found = free_.find(block->bytes); found != free_.end()) {
      block->address = found->second;
      free_.erase(found);
      return {};
    }
  }
  void* address = nullptr;
  Status status = device_->allocate_host(block->bytes, &address);
  block->address = static_cast<std::byte*>(address);
  if (!status.ok()) {
    std::lock_guard lock(mutex_);
    --lent_;
    block->address = nullptr;
  }
  return status;
}

void StagingMemory::take_back(const Block& block) {
  std::lock_guard lock(mutex_);
  free_.emplace(block.bytes, block.address);
  if (--lent_ == 0) idle_.notify_all();
}

void StagingMemory::write_off(size_t blocks) {
  std::lock_guard lock(mutex_);
  stays_ = true;
  if ((lent_ -= blocks) == 0) idle_.notify_all();
}

bool StagingMemory::wait_until_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return lent_ == 0; });
}

}  // namespace treering
