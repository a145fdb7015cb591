// SPDX-License-Identifier: Apache-2.0
// Counters: what one rank's communicator has done. One thread at a time adds, that of the call; any thread reads, so the
// numbers of one reading may be of slightly different moments. Nothing is allocated after the communicator is made.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace treering {

// Without a locked instruction: it has one writer.
class Counter {
 public:
  void add(uint64_t more) { value_.store(value() + more, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Upper bounds of the histogram of durations, in nanoseconds; what is above the last one has a bucket of its own.
inline constexpr std::array<uint64_t, 17> kDurationBounds = {
    300,         1'000,         3'000,         10'000,         30'000,        100'000,
    300'000,     1'000'000,     3'000'000,     10'000'000,     30'000'000,    100'000'000,
    300'000'000, 1'000'000'000, 3'000'000'000, 10'000'000'000, 30'000'000'000};
inline constexpr size_t kDurationBuckets = kDurationBounds.size() + 1;

inline size_t bucket_of(uint64_t ns) {
  size_t bucket = 0;
  while (bucket < kDurationBounds.size() && ns > kDurationBounds[bucket]) ++bucket;
  return bucket;
}

// The calls of one kind: of a collective, as a rule.
struct alignas(64) KindCounters {
  Counter calls, bytes, failures, waited_ns;
  // The calling thread's alone (CallRecorder).
  uint32_t untimed = 0;  // since the last one that stands for others
  uint64_t timed = 0;
  Counter duration_ns;
  std::array<Counter, kDurationBuckets> durations;
};

// What is counted, and under which names.
struct CounterLabels {
  std::string communicator;
  uint32_t rank = 0, ranks = 1;
  std::vector<const char*> kinds;       // "allreduce" ...
  std::vector<const char*> transports;  // by rank; nullptr: this rank itself
};

struct CommunicatorCounters {
  explicit CommunicatorCounters(CounterLabels names)
      : labels(std::move(names)), kinds(labels.kinds.size()), waited_for(labels.ranks), sent(labels.ranks) {}

  const CounterLabels labels;
  std::vector<KindCounters> kinds;
  std::vector<Counter> waited_for;          // by rank; the own one: for no rank in particular
  std::vector<std::atomic<uint64_t>> sent;  // by rank: bytes of messages; written as a Counter is
  Counter sent_to_each;                     // bytes that went to each of the other ranks
};

}  // namespace treering
