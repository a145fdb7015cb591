// SPDX-License-Identifier: Apache-2.0
#include "communicator/idle_links.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace treering {
namespace {

constexpr Clock::duration kServePeriod = std::chrono::milliseconds(1);

struct Entry {
  const void* owner;
  std::function<void()> serve;
};

struct Registry {
  std::mutex mutex;
  std::vector<Entry> entries;
  std::atomic<size_t> count{0};
  std::atomic<Clock::rep> next{0};  // when they are served again
};

// Made when the library is loaded, because waits allocate nothing, and never destroyed: it is used until the process
// ends.
Registry& registry = *new Registry;

void before_fork() { registry.mutex.lock(); }
void after_fork_in_parent() { registry.mutex.unlock(); }
// Its communicators are the parent's.
void after_fork_in_child() {
  registry.entries.clear();
  registry.count = 0;
  registry.mutex.unlock();
}

}  // namespace

void LinkTurn::take() {
  while (!try_take()) std::this_thread::yield();
}

void IdleLinks::add(const void* owner, std::function<void()> serve) {
  [[maybe_unused]] static const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  std::lock_guard lock(registry.mutex);
  registry.entries.push_back({owner, std::move(serve)});
  registry.count = registry.entries.size();
}

void IdleLinks::remove(const void* owner) {
  std::lock_guard lock(registry.mutex);
  std::erase_if(registry.entries, [owner](const Entry& entry) { return entry.owner == owner; });
  registry.count = registry.entries.size();
}

void IdleLinks::serve() {
  if (registry.count.load(std::memory_order_relaxed) == 0) return;
  const auto now = Clock::now().time_since_epoch();
  auto next = registry.next.load(std::memory_order_relaxed);
  if (now.count() < next || !registry.next.compare_exchange_strong(next, (now + kServePeriod).count())) return;
  std::unique_lock lock(registry.mutex, std::try_to_lock);
  if (!lock) return;  // another thread serves them
  for (const Entry& entry : registry.entries) entry.serve();
}

}  // namespace treering
