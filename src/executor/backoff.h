// SPDX-License-Identifier: Apache-2.0
// Backoff: how a rank waits: it spins while every rank has a core (the latency is that of a cache line), then yields
// the core, then sleeps for growing times, so that neither an idle communicator nor more ranks than cores burn CPU. A
// rank with streams to other hosts soon sleeps on these, and one beside a busy program sleeps at once.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "transport/wait_set.h"

namespace treering {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Empty polls before the first yield, yields before the first sleep, and how long the sleeps are.
struct WaitPolicy {
  uint32_t spins = 0;
  uint32_t yields = 20'000;  // some 10 ms
  uint32_t short_sleep_us = 50;
  uint32_t long_sleep_us = 500;
  // Sleeps where a yield takes long. Where ranks share a core, each may well keep it for a slice of time: with 2 and
  // 4 to a core, messages of MiB took a quarter longer with it.
  bool notices_crowds = true;
};

// For `ranks` ranks that share `cores` cores. With a few ranks to a core each yields, which is a switch to the next.
// With dozens, yielding ranks would only switch among themselves: they sleep soon, the longer the more they are, so
// that all of them together wake some 80'000 times a second on each core, and the one with something to do finds it
// free.
inline WaitPolicy wait_policy_of(uint32_t ranks, uint32_t cores) {
  constexpr uint32_t kFew = 16, kManyYields = 16, kMaxSleepUs = 4'000;
  const uint32_t share = (ranks + cores - 1) / cores;
  WaitPolicy policy;
  if (share <= 1) policy.spins = 20'000;
  policy.notices_crowds = share <= 1;
  if (share <= kFew) return policy;
  policy.yields = kManyYields;
  policy.short_sleep_us = std::clamp(share * 25 / 2, policy.short_sleep_us, kMaxSleepUs);
  policy.long_sleep_us = std::max(policy.long_sleep_us, policy.short_sleep_us);
  return policy;
}

class Backoff {
 public:
  explicit Backoff(const WaitPolicy& policy = {}) : policy_(policy) {}

  // Sleeps on them instead; `all`: the rank waits for nothing else, so a sleep may last. nullptr or an empty set: as
  // without. For polls that look at streams, of which each is a system call.
  void sleep_on(WaitSet* waits, bool all) {
    waits_ = waits;
    waits_are_all_ = all;
  }

  void reset() {
    polls_ = 0;
    armed_ = false;
  }

  // Waits a little. True when it is time to look at more than messages: after the spinning, now and then while
  // yielding, and after each sleep.
  bool pause() {
    uint32_t polls = ++polls_;
    if (waits_ != nullptr && !waits_->empty()) return pause_on_waits();
    if (polls <= policy_.spins) {
      cpu_relax();
      return false;
    }
    polls -= policy_.spins;
    const uint32_t yields = crowded_waits_ > 0 ? 0 : policy_.yields;
    if (polls <= yields) {
      yield();
      return polls % kYieldsPerLook == 0;
    }
    const uint32_t sleeps = polls - yields;
    if (sleeps == 1 && crowded_waits_ > 0) --crowded_waits_;
    const uint32_t us = sleeps < kShortSleeps ? policy_.short_sleep_us : policy_.long_sleep_us;
    timespec time{0, static_cast<long>(us) * 1'000};
    nanosleep(&time, nullptr);
    return true;
  }

 private:
  // A rank that yields to another has the core back soon. A program that computes keeps it for its slice of time at
  // every yield; one that sleeps instead is woken in the midst of that.
  void yield() const {
    if (!policy_.notices_crowds) return (void)sched_yield();
    timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &after);
    const int64_t ns = (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec;
    if (ns > kLongYieldNs) crowded_waits_ = kCrowdedWaits;
  }

  bool pause_on_waits() {
    const bool is_cheap = waits_->is_cheap_to_poll();
    const uint32_t polls = waits_are_all_ ? kPollsOfWaits : kPollsBesideMemory;
    const uint32_t most = policy_.spins + policy_.yields;
    // Ranks that share a core let go of it: one yield takes as long as the polls of all the others, and what moves the
    // packets may need the core, too.
    const bool shares_core = policy_.spins == 0;
    uint32_t awake = most;
    if (!is_cheap)
      awake = std::min(most, polls);
    else if (shares_core)
      awake = std::min(most, kYieldsOfDevices);
    if (polls_ <= awake) {
      if (is_cheap && polls_ <= std::min(policy_.spins, kSpinsOfDevices))
        cpu_relax();
      else if (crowded_waits_ > 0)
        --crowded_waits_, polls_ = awake;
      else
        yield();  // a poll of a socket is a system call anyway
      return is_cheap && polls_ % kYieldsPerLook == 0 && polls_ > policy_.spins;
    }
    // A short sleep ends by itself: to arm it would cost more than it saves.
    if (waits_are_all_ && !armed_ && waits_->arm()) return !(armed_ = true);
    armed_ = false;
    const bool woken = waits_->wait(waits_are_all_ ? kLongSleep : policy_.short_sleep_us);
    // The event may belong to a stream that the next few polls do not reach.
    if (woken) polls_ = awake - std::min(awake, kPollsWhenWoken);
    return !woken || ++wakes_ % kYieldsPerLook == 0;
  }

  static constexpr uint32_t kPollsOfWaits = 100;  // some 50 us
  // A poll of a device takes as long as dozens of polls of memory. Beside it a yield is cheap, and lets go of the core
  // where hosts share it.
  static constexpr uint32_t kSpinsOfDevices = 50;
  static constexpr uint32_t kYieldsOfDevices = 500;
  static constexpr uint32_t kPollsBesideMemory = 400;  // what memory brings ends no sleep
  static constexpr uint32_t kPollsWhenWoken = 40;
  static constexpr uint32_t kLongSleep = 1000;  // us

  static constexpr int64_t kLongYieldNs = 2'500'000;  // slices are of 3 ms and more
  static constexpr uint32_t kCrowdedWaits = 100;
  static constexpr uint32_t kYieldsPerLook = 64;
  static constexpr uint32_t kShortSleeps = 200;

  WaitPolicy policy_;
  uint32_t polls_ = 0;
  uint32_t wakes_ = 0;
  // So many more waits of this thread do without a yield: a wait is often shorter than a yield takes here.
  static inline thread_local uint32_t crowded_waits_ = 0;
  WaitSet* waits_ = nullptr;
  bool waits_are_all_ = false;
  bool armed_ = false;  // and polled since
};

}  // namespace treering
