// SPDX-License-Identifier: Apache-2.0
// The background thread, without which programs that sleep until a completion event would sleep for ever. It starts when it is
// first needed, and ends with the library.
#include <chrono>
#include <thread>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

class Pump {
 public:
  ~Pump() {
    if (!thread_.joinable()) return;
    {
      const Lock lock;
      stop_ = true;
      world().work.notify_all();
    }
    thread_.join();
  }
  // With the world's lock.
  void wake() {
    if (!needed() || stop_) return;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    world().work.notify_all();
  }

 private:
  static bool needed() {
    const fake_verbs_progress mode = world().settings.progress;
    return !world().active.empty() && (mode == FAKE_VERBS_THREAD || (mode == FAKE_VERBS_ARMED && world().armed > 0));
  }

  void run() {
    Lock lock;
    while (!stop_) {
      if (!needed()) {
        world().work.wait(lock.held());
        continue;
      }
      advance(world().settings.disorder == 0);
      world().clock += kTurn.count();
      // Only the end wakes the second one before its time; other wake-ups do no harm.
      if (needed()) world().work.wait_for(lock.held(), kTurn, [this] { return stop_; });
    }
  }

  static constexpr std::chrono::nanoseconds kTurn = std::chrono::microseconds(100);
  bool stop_ = false;
  std::thread thread_;
};

Pump pump;

}  // namespace

void wake_pump() { pump.wake(); }

}  // namespace treering::fake_verbs
