// SPDX-License-Identifier: Apache-2.0
// TraceRing: the calls of one communicator that have been recorded and not been written yet. One thread puts them in,
// that of the calls, without waiting; one takes them out. What has no room is counted, and lost.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "metrics/counters.h"

namespace treering {

// Times are nanoseconds of Clock.
struct TraceEvent {
  int64_t begin = 0, end = 0;
  uint64_t number = 0;  // of the communicator's operations, the same on all ranks; 0: it is not counted
  uint64_t bytes = 0;
  const char* kind = "";                 // the collective
  const char* algorithm = "";            // "": it has not come to one
  int64_t waited = 0;                    // in all
  int64_t wait_begin = 0, wait_end = 0;  // the longest wait
  uint32_t wait_peer = 0;                // ... for whom; the own rank: for none in particular
  bool begin_is_late = false;            // it began up to some microseconds before `begin`
  bool failed = false;
};

class TraceRing {
 public:
  static constexpr size_t kEvents = 2048;

  // Whether it is half full now: time to take them out.
  bool push(const TraceEvent& event) {
    const uint64_t end = end_.load(std::memory_order_relaxed), begin = begin_.load(std::memory_order_acquire);
    if (end - begin == kEvents) {
      lost_.add(1);
      return false;
    }
    events_[end % kEvents] = event;
    end_.store(end + 1, std::memory_order_release);
    return end + 1 - begin == kEvents / 2;
  }
  template <typename Visit>
  void take(const Visit& visit) {
    const uint64_t end = end_.load(std::memory_order_acquire);
    for (uint64_t begin = begin_.load(std::memory_order_relaxed); begin != end; ++begin) {
      visit(events_[begin % kEvents]);
      begin_.store(begin + 1, std::memory_order_release);
    }
  }
  uint64_t lost() const { return lost_.value(); }

 private:
  std::unique_ptr<TraceEvent[]> events_ = std::make_unique<TraceEvent[]>(kEvents);
  std::atomic<uint64_t> begin_{0}, end_{0};
  Counter lost_;
};

}  // namespace treering
