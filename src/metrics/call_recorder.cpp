// SPDX-License-Identifier: Apache-2.0
#include "metrics/call_recorder.h"

namespace treering {

CallRecorder::CallRecorder(CounterLabels labels, uint32_t polls_until_wait, bool traces, std::function<void()> wake)
    : counters_(std::move(labels)),
      kinds_(counters_.kinds.data()),
      trace_(traces ? std::make_unique<TraceRing>() : nullptr),
      wake_(std::move(wake)),
      polls_until_wait_(polls_until_wait) {
  if (traces) next_traced_ = 1;
}

// Some 64 on average, and not in step with a program whose calls come in rounds.
uint32_t CallRecorder::next_turn() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return 32 + static_cast<uint32_t>(random_ >> 32 & 63);
}

void CallRecorder::start_clock(bool is_long) {
  is_long_ = is_long;
  begin_ = now();
}

// The first calls of a kind that come between many others.
void CallRecorder::start_clock_late() {
  --kind_->untimed;
  begin_is_late_ = true;
  begin_ = now();
}

void CallRecorder::take_turn() {
  until_turn_ = ++turns_ < kAllTimed ? 1 : next_turn();
  is_traced_ = trace_ != nullptr && (call_.number == 0 || call_.number >= next_traced_);
  if (call_.number < next_traced_) return;
  const uint64_t number = call_.number;
  next_traced_ = number < kAllTraced ? number + 1 : (number / kTracedEach + 1) * kTracedEach;
}

// The clock is read when a rank begins to wait for another one, and when that ends.
void CallRecorder::begin_wait(uint32_t peer) {
  const int64_t time = now();
  if (wait_begin_ != 0) end_wait(time);
  if (begin_ == 0) {
    --kind_->untimed;
    begin_is_late_ = true;
    begin_ = time;
  }
  has_waited_ = true;
  wait_begin_ = wait_counted_ = time;
  wait_peer_ = peer;
}

void CallRecorder::count_wait(int64_t until) {
  const auto more = static_cast<uint64_t>(until - std::exchange(wait_counted_, until));
  kind_->waited_ns.add(more);
  counters_.waited_for[wait_peer_].add(more);
}

void CallRecorder::end_wait(int64_t until) {
  count_wait(until);
  waited_ += until - wait_begin_;
  if (until - wait_begin_ > longest_end_ - longest_begin_) {
    longest_begin_ = wait_begin_;
    longest_end_ = until;
    longest_peer_ = wait_peer_;
  }
  wait_begin_ = 0;
}

void CallRecorder::fail() {
  if (kind_ != nullptr) end_timed(true);
}

void CallRecorder::end_timed(bool failed) {
  const int64_t time = now();
  if (wait_begin_ != 0) end_wait(time);
  if (failed) kind_->failures.add(1);
  if (begin_ == 0) {  // one that failed
    --kind_->untimed;
    begin_is_late_ = true;
    begin_ = time;
  }
  // Every large call and every one that waits is timed, and stands for itself alone.
  const bool stands_for_others = !is_long_ && !has_waited_ && !failed;
  const uint64_t weight = stands_for_others ? 1 + std::exchange(kind_->untimed, 0) : 1;
  const auto duration = static_cast<uint64_t>(time - begin_);
  ++kind_->timed;
  kind_->duration_ns.add(weight * duration);
  kind_->durations[bucket_of(duration)].add(weight);
  if (trace_ != nullptr && (is_long_ || is_traced_ || has_waited_ || failed)) push_event(time, failed);
  kind_ = nullptr;
  begin_ = 0;
  is_long_ = is_traced_ = has_waited_ = begin_is_late_ = false;
  waited_ = longest_begin_ = longest_end_ = 0;
}

void CallRecorder::push_event(int64_t end, bool failed) {
  TraceEvent event;
  event.begin = begin_;
  event.end = end;
  event.number = call_.number;
  event.bytes = call_.bytes;
  event.kind = counters_.labels.kinds[call_.kind];
  event.algorithm = call_.algorithm;
  event.waited = waited_;
  event.wait_begin = longest_begin_;
  event.wait_end = longest_end_;
  event.wait_peer = longest_peer_;
  event.begin_is_late = begin_is_late_;
  event.failed = failed;
  if (trace_->push(event)) wake_();
}

}  // namespace treering
