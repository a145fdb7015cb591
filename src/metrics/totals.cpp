// SPDX-License-Identifier: Apache-2.0
#include "metrics/totals.h"

namespace treering {

void Totals::add(const Totals& more) {
  communicators += more.communicators;
  for (const auto& [name, kind] : more.kinds) {
    KindTotals& sum = kinds[name];
    sum.calls += kind.calls;
    sum.bytes += kind.bytes;
    sum.failures += kind.failures;
    sum.waited_ns += kind.waited_ns;
    sum.duration_ns += kind.duration_ns;
    for (size_t i = 0; i < kDurationBuckets; ++i) sum.durations[i] += kind.durations[i];
  }
  for (const auto& [rank, ns] : more.waited_for_ns) waited_for_ns[rank] += ns;
  for (const auto& [transport, bytes] : more.sent) sent[transport] += bytes;
}

TotalsKey key_of(const CounterLabels& labels) {
  return {labels.communicator.empty() ? kUnnamed : labels.communicator, labels.ranks, labels.rank};
}

Totals read_totals(const CommunicatorCounters& counters) {
  Totals totals;
  totals.communicators = 1;
  for (size_t kind = 0; kind < counters.kinds.size(); ++kind) {
    const KindCounters& from = counters.kinds[kind];
    if (from.calls.value() == 0) continue;
    KindTotals& to = totals.kinds[counters.labels.kinds[kind]];
    to = {from.calls.value(),     from.bytes.value(),       from.failures.value(),
          from.waited_ns.value(), from.duration_ns.value(), {}};
    for (size_t i = 0; i < kDurationBuckets; ++i) to.durations[i] = from.durations[i].value();
  }
  const uint64_t to_each = counters.sent_to_each.value();
  for (uint32_t peer = 0; peer < counters.labels.ranks; ++peer) {
    if (const uint64_t ns = counters.waited_for[peer].value(); ns > 0) totals.waited_for_ns[peer] = ns;
    const char* const transport = counters.labels.transports[peer];
    const uint64_t bytes = counters.sent[peer].load(std::memory_order_relaxed) + to_each;
    if (transport != nullptr && bytes > 0) totals.sent[transport] += bytes;
  }
  return totals;
}

void add_totals(const TotalsKey& key, const Totals& more, TotalsTable* table) {
  const bool is_new = table->find(key) == table->end();
  if (!is_new || table->size() < kMaxSeries) return (*table)[key].add(more);
  (*table)[{kOthers, 0, 0}].add(more);
}

}  // namespace treering
