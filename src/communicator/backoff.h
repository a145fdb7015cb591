// Backoff: how a rank waits: it spins while every rank has a core (the latency is that of a cache line), then yields
// the core, then sleeps for growing times, so that neither an idle communicator nor more ranks than cores burn CPU.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

namespace treering {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Backoff {
 public:
  // spins: empty polls before the first yield; 0 when there are more ranks than cores. yields: before the first sleep.
  explicit Backoff(uint32_t spins = 0, uint32_t yields = kYields) : spins_(spins), yields_(yields) {}

  void reset() { polls_ = 0; }

  // Waits a little. True when it is time to look at more than messages: after the spinning, now and then while
  // yielding, and after each sleep.
  bool pause() {
    uint32_t polls = ++polls_;
    if (polls <= spins_) {
      cpu_relax();
      return false;
    }
    polls -= spins_;
    if (polls <= yields_) {
      sched_yield();
      return polls % kYieldsPerLook == 0;
    }
    uint32_t sleeps = polls - yields_;
    timespec time{0, sleeps < kShortSleeps ? 50'000 : 500'000};
    nanosleep(&time, nullptr);
    return true;
  }

 private:
  static constexpr uint32_t kYields = 20'000;  // some 10 ms
  static constexpr uint32_t kYieldsPerLook = 64;
  static constexpr uint32_t kShortSleeps = 200;

  uint32_t spins_;
  uint32_t yields_;
  uint32_t polls_ = 0;
};

}  // namespace treering
