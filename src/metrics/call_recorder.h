// SPDX-License-Identifier: Apache-2.0
// CallRecorder: what a communicator tells of its calls, for metrics and traces.
//
//   begin() --> started() --> { blocked(), moved() } --> end()
//
// Two readings of the clock would take a fifth of a small call's time. So a call is timed when it is large, when it waits,
// or when it is its turn: the first of each kind, then one of some 64, which stands for those since the last one.
// What is counted beyond that is counted while the call's first messages are under way.
//
// Used by one thread at a time, as the communicator is. It takes no lock, allocates nothing and calls no system.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "core/clock.h"
#include "metrics/counters.h"
#include "metrics/trace_ring.h"

namespace treering {

class CallRecorder {
 public:
  // Empty polls after which a rank counts as waiting.
  static constexpr uint32_t kPollsOfSpinning = 64;
  static constexpr size_t kMinLongElements = 8192;  // calls that are always timed

  // `wake`: the trace's memory is half full.
  CallRecorder(CounterLabels labels, uint32_t polls_until_wait, bool traces, std::function<void()> wake);

  // A call begins, on this kind's row. `number`: see TraceEvent.
  void begin(size_t kind, bool is_long, uint64_t number) {
    kind_ = &counters_.kinds[kind];
    number_ = number;
    algorithm_ = nullptr;
    const bool is_turn = --kind_->until_timed == 0;
    if (is_turn || is_long || number >= next_traced_) [[unlikely]]
      start_clock(is_turn, is_long);
  }
  // Its first messages are under way. `algorithm` is for the trace alone.
  void started(uint64_t bytes, const char* algorithm) {
    kind_->calls.add(1);
    kind_->bytes.add(bytes);
    bytes_ = bytes;
    algorithm_ = algorithm;
    polls_ = 0;
  }
  void sent_to_each(uint64_t bytes) { counters_.sent_to_each.add(bytes); }
  // It could not go on; asked again and again. Whether to tell for want of whose message.
  bool is_blocked() { return ++polls_ >= polls_until_wait_; }
  void blocked(uint32_t peer) {
    if (kind_ != nullptr && (wait_begin_ == 0 || peer != wait_peer_)) begin_wait(peer);
  }
  void moved() {
    polls_ = 0;
    if (wait_begin_ != 0) end_wait(now());
  }
  // Now and then while it is blocked: a wait that lasts is seen before it ends.
  void look() {
    if (wait_begin_ != 0) count_wait(now());
  }
  // It is over, if one is under way.
  void end(bool failed) {
    if (kind_ == nullptr) return;
    if (begin_ != 0 || failed) [[unlikely]]
      return end_timed(failed);
    ++kind_->untimed;
    kind_ = nullptr;
  }
  bool traces() const { return trace_ != nullptr; }

  const CommunicatorCounters& counters() const { return counters_; }
  std::atomic<uint64_t>* sent() { return counters_.sent.data(); }
  TraceRing* trace() { return trace_.get(); }

 private:
  static constexpr uint64_t kAllTimed = 64, kAllTraced = 1024, kTracedEach = 1024;

  static int64_t now() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
  void start_clock(bool is_turn, bool is_long);
  void begin_wait(uint32_t peer);
  void count_wait(int64_t until);
  void end_wait(int64_t until);
  void end_timed(bool failed);
  void push_event(int64_t end, bool failed);
  uint32_t next_turn();

  CommunicatorCounters counters_;
  std::unique_ptr<TraceRing> trace_;  // nullptr: nothing is traced
  const std::function<void()> wake_;
  const uint32_t polls_until_wait_;

  // The call.
  KindCounters* kind_ = nullptr;  // nullptr: none is under way
  int64_t begin_ = 0;             // 0: it is not timed yet
  uint64_t number_ = 0;
  uint64_t next_traced_ = UINT64_MAX;  // the same numbers on all ranks
  uint64_t bytes_ = 0;
  const char* algorithm_ = nullptr;  // nullptr: it has not started
  bool is_long_ = false, is_traced_ = false;
  bool has_waited_ = false, begin_is_late_ = false;
  uint32_t polls_ = 0;  // empty, one after the other
  // Its waits.
  int64_t wait_begin_ = 0, wait_counted_ = 0;  // 0: it does not wait
  uint32_t wait_peer_ = 0;
  int64_t waited_ = 0;
  int64_t longest_begin_ = 0, longest_end_ = 0;
  uint32_t longest_peer_ = 0;
  uint64_t random_ = 0x9E3779B97F4A7C15u;
};

}  // namespace treering
