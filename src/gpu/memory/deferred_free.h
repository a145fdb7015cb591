// SPDX-License-Identifier: Apache-2.0
// DeferredFree: what communicators leave of GPUs' memory and of pinned memory, on its way back to the driver.
//
// Before it frees memory a driver may wait for all that the GPUs have to do, other communicators' kernels included, and
// those may wait for what the freeing thread has yet to do: to abort them, say. So nothing is freed while a
// communicator of this process has anything under way on a GPU:
//
//   defer()     kept for later
//   collect()   gives back what can be, and never waits for a communicator: when one is made, and when one ends
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "device/device.h"

namespace treering {

class DeferredFree {
 public:
  static DeferredFree& instance();

  // Asked by any thread until remove_user(): whether a rank of a communicator has anything under way on its GPU.
  void add_user(const void* user, std::function<bool()> is_busy);
  void remove_user(const void* user);
  // Held while work is given to a GPU: nothing is given back meanwhile, and nothing is begun while that goes on.
  [[nodiscard]] std::shared_lock<std::shared_mutex> hold() { return std::shared_lock(in_use_); }

  struct Item {
    std::function<void()> give_back;
    std::function<bool()> is_ready;        // empty: it is
    std::function<bool()> is_left_behind;  // whether other processes may still use it, for which exit() waits; or empty
  };
  // In the order of these calls, as far as items are ready.
  void defer(Item item);
  void free(Device* device, void* address);
  void free_host(Device* device, void* address);
  void collect();

 private:
  DeferredFree() = default;
  static void linger();
  void collect_once();

  std::atomic<uint32_t> wanted_{0};  // collect()s that have not been done
  std::shared_mutex in_use_;
  std::mutex mutex_;
  std::map<const void*, std::function<bool()>> users_;
  std::vector<Item> items_;
};

}  // namespace treering
