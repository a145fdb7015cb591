// SPDX-License-Identifier: Apache-2.0
// What is counted of calls, whatever the clock says.
#include "metrics/call_recorder.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace treering {
namespace {

constexpr uint32_t kPolls = 4;

struct Recorded {
  explicit Recorded(bool traces = false)
      : recorder({"c", 0, 3, {"allreduce", "barrier"}, {nullptr, "tcp", "tcp"}}, kPolls, traces, [this] { ++woken; }) {}
  void call(size_t kind = 0, bool is_long = false) {
    begin(kind, is_long);
    recorder.end();
  }
  void begin(size_t kind = 0, bool is_long = false) {
    recorder.begin(is_long);
    ++number;
    recorder.started({kind, number, number, 8, "ring"});
  }
  void wait(uint32_t peer, uint32_t polls = kPolls) {
    for (uint32_t i = 0; i < polls; ++i)
      if (recorder.is_blocked()) recorder.blocked(peer);
  }
  const KindCounters& kind(size_t i = 0) const { return recorder.counters().kinds[i]; }
  uint64_t timed(size_t i = 0) const {
    uint64_t sum = 0;
    for (const Counter& bucket : kind(i).durations) sum += bucket.value();
    return sum;
  }
  std::vector<TraceEvent> events() {
    std::vector<TraceEvent> all;
    recorder.trace()->take([&](const TraceEvent& event) { all.push_back(event); });
    return all;
  }

  int woken = 0;
  uint64_t number = 0;
  CallRecorder recorder;
};

TEST(CallRecorder, FewCallsAreAllTimed) {
  Recorded all;
  for (int i = 0; i < 40; ++i) all.call();
  EXPECT_EQ(all.kind().calls.value(), 40u);
  EXPECT_EQ(all.kind().bytes.value(), 320u);
  EXPECT_EQ(all.timed(), 40u);
  EXPECT_EQ(all.kind(1).calls.value(), 0u);
}

TEST(CallRecorder, TheFirstCallsOfARareKindAreTimed) {
  Recorded all;
  for (int i = 0; i < 20; ++i) {
    for (int j = 0; j < 100; ++j) all.call();
    all.call(1);
  }
  EXPECT_EQ(all.timed(1), 20u);
}

// Those that were not timed yet are missing, fewer than from one turn to the next.
TEST(CallRecorder, ATimedCallStandsForThoseBefore) {
  Recorded all;
  for (uint64_t calls = 1; calls <= 5000; ++calls) {
    all.call();
    ASSERT_LE(all.timed(), calls);
    ASSERT_GT(all.timed() + 96, calls);
  }
}

TEST(CallRecorder, LongCallsStandForThemselves) {
  Recorded all;
  for (int i = 0; i < 1000; ++i) all.call();
  const uint64_t before = all.timed();
  const uint64_t untimed = 1000 - before;
  all.call(0, true);
  EXPECT_EQ(all.timed(), before + 1);
  EXPECT_EQ(all.kind().untimed, untimed);
}

TEST(CallRecorder, AWaitIsCountedForItsRank) {
  Recorded all;
  for (int i = 0; i < 1000; ++i) all.call();
  const uint64_t before = all.timed();
  all.begin();
  all.wait(1, kPolls - 1);
  all.recorder.moved();
  all.wait(1, kPolls - 1);  // short both times
  all.recorder.moved();
  EXPECT_EQ(all.kind().waited_ns.value(), 0u);
  all.wait(1);
  all.wait(2, 1);  // the same poll finds that another one is missing now
  all.recorder.moved();
  all.recorder.end();
  const auto& waited = all.recorder.counters().waited_for;
  EXPECT_GT(waited[1].value(), 0u);
  EXPECT_GT(waited[2].value(), 0u);
  EXPECT_EQ(waited[0].value(), 0u);
  EXPECT_EQ(all.kind().waited_ns.value(), waited[1].value() + waited[2].value());
  EXPECT_EQ(all.timed(), before + 1) << "a call that waits is timed";
  EXPECT_GE(all.kind().duration_ns.value(), all.kind().waited_ns.value());
}

TEST(CallRecorder, AWaitThatLastsIsSeen) {
  Recorded all;
  all.begin();
  all.wait(2);
  all.recorder.look();
  const uint64_t once = all.recorder.counters().waited_for[2].value();
  EXPECT_GT(once, 0u);
  all.recorder.look();
  EXPECT_GT(all.recorder.counters().waited_for[2].value(), once);
  all.recorder.end();
  EXPECT_LE(all.recorder.counters().waited_for[2].value(), all.kind().duration_ns.value());
}

TEST(CallRecorder, FailuresAreCounted) {
  Recorded all;
  for (int i = 0; i < 500; ++i) all.call();
  for (int i = 0; i < 2; ++i) {
    all.begin();
    all.recorder.fail();
  }
  all.recorder.fail();  // no call is under way
  EXPECT_EQ(all.kind().failures.value(), 2u);
  EXPECT_EQ(all.kind().calls.value(), 502u);
  all.call();
  EXPECT_EQ(all.kind().failures.value(), 2u);
  EXPECT_LE(all.timed(), 503u);
}

TEST(CallRecorder, ATraceHasTheSameCallsOnAllRanks) {
  Recorded some(true);
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 5000; ++i) {
    some.call(i % 2);
    for (const TraceEvent& event : some.events()) numbers.push_back(event.number);
  }
  ASSERT_GT(numbers.size(), 1000u);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i < 1000) {
      EXPECT_EQ(numbers[i], i + 1);
    }
    EXPECT_TRUE(numbers[i] <= 1024 || numbers[i] % 1024 == 0) << numbers[i];
  }
}

TEST(CallRecorder, ATraceHasTheLongestWait) {
  Recorded all(true);
  for (int i = 0; i < 64; ++i) all.call(1);
  all.number = 4998;
  all.call(1);
  all.events();
  all.begin(1);
  all.wait(1);
  all.recorder.moved();
  all.wait(2);
  const auto until = Clock::now() + std::chrono::milliseconds(1);
  while (Clock::now() < until) all.recorder.blocked(2);
  all.recorder.end();
  const auto events = all.events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_STREQ(events[0].kind, "barrier");
  EXPECT_STREQ(events[0].algorithm, "ring");
  EXPECT_EQ(events[0].number, 5000u);
  EXPECT_EQ(events[0].wait_peer, 2u);
  EXPECT_TRUE(events[0].begin_is_late);
  EXPECT_GE(events[0].wait_end - events[0].wait_begin, 1'000'000);
  EXPECT_GE(events[0].waited, events[0].wait_end - events[0].wait_begin);
  EXPECT_GE(events[0].end, events[0].wait_end);
  EXPECT_LE(events[0].begin, events[0].wait_begin);
}

TEST(TraceRing, WhatHasNoRoomIsCounted) {
  TraceRing ring;
  size_t halves = 0;
  for (size_t i = 0; i < TraceRing::kEvents + 3; ++i) halves += ring.push({.number = i});
  EXPECT_EQ(halves, 1u);
  EXPECT_EQ(ring.lost(), 3u);
  uint64_t next = 0;
  ring.take([&](const TraceEvent& event) { EXPECT_EQ(event.number, next++); });
  EXPECT_EQ(next, TraceRing::kEvents);
  EXPECT_FALSE(ring.push({.number = 7}));
  ring.take([&](const TraceEvent& event) { EXPECT_EQ(event.number, 7u); });
}

TEST(TraceRing, OneThreadFillsItWhileAnotherTakes) {
  TraceRing ring;
  constexpr uint64_t kCalls = 200'000;
  std::atomic<bool> done{false};
  std::jthread taker;
  uint64_t taken = 0, last = 0;
  bool in_order = true;
  const auto take = [&] {
    ring.take([&](const TraceEvent& event) {
      in_order = in_order && event.number > last && event.bytes == 3 * event.number;
      last = event.number;
      ++taken;
    });
  };
  taker = std::jthread([&] {
    while (!done.load()) take();
  });
  for (uint64_t i = 1; i <= kCalls; ++i) ring.push({.number = i, .bytes = 3 * i});
  done = true;
  taker.join();
  take();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(taken + ring.lost(), kCalls);
}

}  // namespace
}  // namespace treering
