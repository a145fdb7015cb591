// SPDX-License-Identifier: Apache-2.0
// StagingMemory: blocks of pinned host memory, lent to calls and taken back when their streams have passed.
//
// Blocks are powers of two and kept for the next call: pinning memory waits for the device.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace treering {

class StagingMemory {
 public:
  explicit StagingMemory(Device* device) : device_(device) {}
  // Frees nothing: the last to know of it may be a thread that must not call the driver. See free_all().
  ~StagingMemory() = default;
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  struct Block {
    std::byte* address = nullptr;
    size_t bytes = 0;
  };
  Status lend(size_t bytes, Block* block);
  void take_back(const Block& block);
  // What cannot be taken back, because a kernel may use it for ever: all stays, because freeing would wait for the
  // kernel.
  void write_off(size_t blocks);
  // At the end, when nothing is lent.
  void free_all();
  // Waits until nothing is lent; false when that takes longer.
  bool wait_until_idle(std::chrono::milliseconds timeout);

 private:
  Device* device_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::multimap<size_t, std::byte*> free_;
  size_t lent_ = 0;
  bool stays_ = false;
};

}  // namespace treering
