// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/stuck_hubs.h"

#include <pthread.h>

#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/background_thread.h"
#include "core/clock.h"
#include "transport/ucx/hub.h"

namespace treering::ucx {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr auto kPause = std::chrono::milliseconds(10);

struct State {
  std::mutex mutex;
  std::vector<std::unique_ptr<Hub>> hubs;
  Clock::time_point until{};
  bool runs = false;  // the thread
  bool is_exiting = false;
};

// Never destroyed: the thread may outlive the program's static objects.
State* current = nullptr;

// A forked child must not touch its parent's connections, nor a mutex that the parent's thread may have held.
void forget_in_child() { current = new State; }

// UCX is used no more while the process ends, and takes itself down.
void at_exit() {
  std::lock_guard lock(current->mutex);
  current->is_exiting = true;
}

State& state() {
  static const bool made = [] {
    current = new State;
    return pthread_atfork(nullptr, nullptr, forget_in_child) == 0 && std::atexit(at_exit) == 0;
  }();
  if (!made) current->is_exiting = true;  // the thread could not be stopped: none is started
  return *current;
}

// Whether to go on.
bool end_some(State* all) {
  std::lock_guard lock(all->mutex);
  if (all->is_exiting) return all->runs = false;
  std::erase_if(all->hubs, [](const auto& hub) { return hub->end_stuck(); });
  return all->runs = !all->hubs.empty() && Clock::now() < all->until;
}

}  // namespace

void StuckHubs::add(std::unique_ptr<Hub> hub) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  all.hubs.push_back(std::move(hub));
  all.until = Clock::now() + kTriesFor;
  if (all.is_exiting || all.runs) return;
  all.runs = start_background_thread("treering-ucx", kStackBytes, [&all] {
    while (end_some(&all)) std::this_thread::sleep_for(kPause);
  });
}

size_t StuckHubs::count() {
  State& all = state();
  std::lock_guard lock(all.mutex);
  return all.hubs.size();
}

}  // namespace treering::ucx
