// Backoff: how a rank waits: it spins while every rank has a core (the latency is that of a cache line), then yields
// the core, then sleeps for growing times, so that neither an idle communicator nor more ranks than cores burn CPU. A rank
// with streams to other hosts soon sleeps on these.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>

#include "transport/tcp_wait.h"

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

  // Sleeps on them instead; `all`: the rank waits for nothing else, so a sleep may last. nullptr or an empty set: as
  // without. For polls that look at streams, of which each is a system call.
  void sleep_on(TcpWaitSet* streams, bool all) {
    streams_ = streams;
    streams_are_all_ = all;
  }

  void reset() { polls_ = 0; }

  // Waits a little. True when it is time to look at more than messages: after the spinning, now and then while
  // yielding, and after each sleep.
  bool pause() {
    uint32_t polls = ++polls_;
    if (streams_ != nullptr && !streams_->empty()) return pause_on_streams();
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
  bool pause_on_streams() {
    const uint32_t awake = streams_are_all_ ? kPollsOfStreams : kPollsBesideMemory;
    if (polls_ <= awake) {
      sched_yield();  // a poll is a system call anyway
      return false;
    }
    const bool woken = streams_->wait(streams_are_all_ ? kLongSleep : kSleepBesideMemory);
    // The event may belong to a stream that the next few polls do not reach.
    if (woken) polls_ = awake - kPollsWhenWoken;
    return !woken || ++wakes_ % kYieldsPerLook == 0;
  }

  static constexpr uint32_t kPollsOfStreams = 100;     // some 50 us
  static constexpr uint32_t kPollsBesideMemory = 400;  // what memory brings ends no sleep
  static constexpr uint32_t kPollsWhenWoken = 40;
  static constexpr uint32_t kLongSleep = 1000;  // us
  static constexpr uint32_t kSleepBesideMemory = 50;

  static constexpr uint32_t kYields = 20'000;  // some 10 ms
  static constexpr uint32_t kYieldsPerLook = 64;
  static constexpr uint32_t kShortSleeps = 200;

  uint32_t spins_;
  uint32_t yields_;
  uint32_t polls_ = 0;
  uint32_t wakes_ = 0;
  TcpWaitSet* streams_ = nullptr;
  bool streams_are_all_ = false;
};

}  // namespace treering
