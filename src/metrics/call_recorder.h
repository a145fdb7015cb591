// SPDX-License-Identifier: Apache-2.0
// CallRecorder: what a communicator tells of its calls, for metrics and traces.
//
//   begin() --> started() --> { is_blocked(), blocked(), moved() } --> end()
//
// Two readings of the clock would take a fifth of a small call's time. So a call is timed when it is large, when it waits,
// or when it is its turn: the first ones, then one of some 64, which stands for those of its kind since the last one.
// What a call adds to the time between its last message and the next call's first is a few instructions: the rest is done
// by started(), while its first messages are under way.
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

  struct Started {
    size_t kind = 0;          // its row
    uint64_t number = 0;      // see TraceEvent
    uint64_t operations = 0;  // that have a number, so far
    uint64_t bytes = 0;
    const char* algorithm = "";  // for the trace
  };

  // A call begins.
  void begin(bool is_long) {
    if (is_turn_ || is_long) [[unlikely]]
      start_clock(is_long);
  }
  // Its first messages are under way, or it will not come to that.
  void started(const Started& call) {
    KindCounters& kind = kinds_[call.kind];
    kind_ = &kind;
    kind.calls.add(1);
    kind.bytes.add(call.bytes);
    call_ = call;
    polls_ = 0;
    if (is_turn_) [[unlikely]]
      take_turn();
    is_turn_ = --until_turn_ == 0 || call.operations + 1 >= next_traced_;
    if (begin_ != 0) return;
    ++kind.untimed;
    if (kind.timed < kAllTimed) [[unlikely]]
      start_clock_late();
  }
  void sent_to_each(uint64_t bytes) { counters_.sent_to_each.add(bytes); }
  // It could not go on; asked again and again. Whether to say for want of whose message.
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
  void end() {
    if (begin_ != 0) [[unlikely]]
      return end_timed(false);
    kind_ = nullptr;
  }
  void fail();

  bool traces() const { return trace_ != nullptr; }
  const CommunicatorCounters& counters() const { return counters_; }
  std::atomic<uint64_t>* sent() { return counters_.sent.data(); }
  TraceRing* trace() { return trace_.get(); }

 private:
  static constexpr uint64_t kAllTimed = 64, kAllTraced = 1024, kTracedEach = 1024;

  static int64_t now() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
  void start_clock(bool is_long);
  void start_clock_late();
  void take_turn();
  void begin_wait(uint32_t peer);
  void count_wait(int64_t until);
  void end_wait(int64_t until);
  void end_timed(bool failed);
  void push_event(int64_t end, bool failed);
  uint32_t next_turn();

  CommunicatorCounters counters_;
  KindCounters* const kinds_;
  std::unique_ptr<TraceRing> trace_;  // nullptr: nothing is traced
  const std::function<void()> wake_;
  const uint32_t polls_until_wait_;

  // The next call.
  bool is_turn_ = true;
  uint32_t until_turn_ = 1;
  uint64_t next_traced_ = UINT64_MAX;  // the same numbers on all ranks
  uint64_t turns_ = 0;
  // The call.
  int64_t begin_ = 0;             // 0: it is not timed yet
  KindCounters* kind_ = nullptr;  // nullptr: none is under way
  uint32_t polls_ = 0;            // empty, one after the other
  Started call_;
  bool is_long_ = false, is_traced_ = false;
  bool has_waited_ = false, begin_is_late_ = false;
  // Its waits.
  int64_t wait_begin_ = 0, wait_counted_ = 0;  // 0: it does not wait
  uint32_t wait_peer_ = 0;
  int64_t waited_ = 0;
  int64_t longest_begin_ = 0, longest_end_ = 0;
  uint32_t longest_peer_ = 0;
  uint64_t random_ = 0x9E3779B97F4A7C15u;
};

}  // namespace treering
