// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/deferred_free.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

namespace treering {
namespace {

// How long the end of the process may wait for other processes' kernels.
constexpr std::chrono::seconds kLongestLinger{3};

std::atomic<pid_t> owner{0};  // the process that has something to linger for; a forked child has not

}  // namespace

DeferredFree& DeferredFree::instance() {
  static auto* memory = new DeferredFree;  // never destroyed: exit() comes to it late
  return *memory;
}

void DeferredFree::add_user(const void* user, std::function<bool()> is_busy) {
  std::lock_guard lock(mutex_);
  users_[user] = std::move(is_busy);
}

void DeferredFree::remove_user(const void* user) {
  std::lock_guard lock(mutex_);
  users_.erase(user);
}

void DeferredFree::defer(Item item) {
  [[maybe_unused]] static const int registered = std::atexit(linger);
  if (item.is_left_behind) owner = getpid();
  std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
}

void DeferredFree::free(Device* device, void* address) {
  if (address != nullptr)
    defer({[=] { (void)device->free(address); }, {}, {}});  // at the end: there is no caller to tell
}

void DeferredFree::free_host(Device* device, void* address) {
  if (address != nullptr) defer({[=] { (void)device->free_host(address); }, {}, {}});
}

void DeferredFree::collect() {
  if (wanted_.fetch_add(1) != 0) return;  // the thread that is at it looks again
  uint32_t seen = 1;
  do collect_once();
  while (!wanted_.compare_exchange_strong(seen, 0));
}

void DeferredFree::collect_once() {
  const std::unique_lock alone(in_use_, std::try_to_lock);
  if (!alone.owns_lock()) return;
  std::lock_guard lock(mutex_);
  if (std::any_of(users_.begin(), users_.end(), [](const auto& user) { return user.second(); })) return;
  const auto give_back = [](const Item& item) {
    if (item.is_ready && !item.is_ready()) return false;
    item.give_back();
    return true;
  };
  while (std::erase_if(items_, give_back) > 0) {  // one may have made others ready
  }
}

// At the end of the process, which takes its memory along: kernels of others may still tell it what they consumed.
void DeferredFree::linger() {
  if (owner.load() != getpid()) return;
  instance().collect();  // it tells other processes what they wait for
  const auto until = std::chrono::steady_clock::now() + kLongestLinger;
  const auto is_used = [](const Item& item) { return item.is_left_behind && item.is_left_behind(); };
  DeferredFree& all = instance();
  std::lock_guard lock(all.mutex_);
  while (std::any_of(all.items_.begin(), all.items_.end(), is_used) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace treering
