// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/stuck_hubs.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "core/background_thread.h"
#include "core/clock.h"
#include "transport/ucx/hub.h"

namespace treering::ucx {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr auto kPause = std::chrono::milliseconds(10);

// Never destroyed: the thread may outlive the program's static objects.
struct State {
  std::mutex mutex;
  std::vector<std::unique_ptr<Hub>> hubs;
  Clock::time_point until{};
  pid_t owner = 0;  // of the thread: a forked child has none
  bool is_exiting = false;
};

State& state() {
  static auto* const all = new State;
  return *all;
}

// UCX is used no more while the process ends, and takes itself down.
void at_exit() {
  State& all = state();
  if (all.owner != getpid()) return;
  std::lock_guard lock(all.mutex);
  all.is_exiting = true;
}

// Whether to go on.
bool end_some() {
  State& all = state();
  std::lock_guard lock(all.mutex);
  if (all.is_exiting) return false;
  std::erase_if(all.hubs, [](const auto& hub) { return hub->end_stuck(); });
  if (!all.hubs.empty() && Clock::now() < all.until) return true;
  all.owner = 0;
  return false;
}

}  // namespace

void StuckHubs::add(std::unique_ptr<Hub> hub) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  static const bool asked = std::atexit(&at_exit) == 0;
  all.hubs.push_back(std::move(hub));
  all.until = Clock::now() + kTriesFor;
  if (!asked || all.is_exiting || all.owner == getpid()) return;
  all.owner = getpid();
  const bool started = start_background_thread("treering-ucx", kStackBytes, [] {
    while (end_some()) std::this_thread::sleep_for(kPause);
  });
  if (!started) all.owner = 0;
}

}  // namespace treering::ucx
