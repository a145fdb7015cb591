// SPDX-License-Identifier: Apache-2.0
// Totals: the counters' values at one time, which can be added up: communicators of one name, and those that have ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "metrics/counters.h"

namespace treering {

struct KindTotals {
  uint64_t calls = 0, bytes = 0, failures = 0, waited_ns = 0, duration_ns = 0;
  std::array<uint64_t, kDurationBuckets> durations{};
};

struct Totals {
  uint64_t communicators = 0;  // that live
  std::map<std::string, KindTotals> kinds;
  std::map<uint32_t, uint64_t> waited_for_ns;  // by rank
  std::map<std::string, uint64_t> sent;        // by transport

  void add(const Totals& more);
};

// Communicators with the same key are one series: programs make and destroy many.
struct TotalsKey {
  std::string communicator;
  uint32_t ranks = 1, rank = 0;
  friend auto operator<=>(const TotalsKey&, const TotalsKey&) = default;
};
using TotalsTable = std::map<TotalsKey, Totals>;

TotalsKey key_of(const CounterLabels& labels);
// About one that lives. What is 0 is left out.
Totals read_totals(const CommunicatorCounters& counters);
// Adds to the entry of `key`. A table with kMaxSeries keys takes no more: what is new goes to that of kOthers.
inline constexpr size_t kMaxSeries = 256;
inline constexpr const char* kOthers = "(others)";
inline constexpr const char* kUnnamed = "(unnamed)";
void add_totals(const TotalsKey& key, const Totals& more, TotalsTable* table);

}  // namespace treering
