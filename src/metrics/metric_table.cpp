// SPDX-License-Identifier: Apache-2.0
#include "metrics/metric_table.h"

#include <fmt/format.h>

namespace treering {
namespace {

constexpr MetricRow kMetrics[] = {
    {MetricSource::kLibrary, "treering_library", MetricKind::kInfo, "", "version, host, pid",
     "The library, and the process that it is in."},
    {MetricSource::kCommunicators, "treering_communicators", MetricKind::kGauge, "", "",
     "Communicators that there are now."},
    {MetricSource::kCalls, "treering_calls", MetricKind::kCounter, "", "collective", "Calls that have begun."},
    {MetricSource::kBytes, "treering_call_bytes", MetricKind::kCounter, "bytes", "collective",
     "Bytes of the larger buffer of each call, as they travel (2 for each float32 with bf16 on the wire). For sends, "
     "receives and exchanges between pairs it is what the rank sends and receives together."},
    {MetricSource::kDurations, "treering_call_seconds", MetricKind::kHistogram, "seconds", "collective",
     "Durations of calls on this rank; the sum is the time that it has spent in them. Large calls and those that wait are "
     "all timed. Among the others the first 64 of each collective are, then about 1 in 64, which counts for those since the last one."},
    {MetricSource::kFailures, "treering_call_failures", MetricKind::kCounter, "", "collective",
     "Calls that failed, those on a communicator that had failed before included."},
    {MetricSource::kWaited, "treering_waited_seconds", MetricKind::kCounter, "seconds", "collective",
     "Time in which calls could do nothing but wait for another rank. Waits of a few microseconds are left out."},
    {MetricSource::kWaitedFor, "treering_waited_for_seconds", MetricKind::kCounter, "seconds", "peer",
     "The same by the rank that was waited for: its number in the communicator, or none where it was no rank in "
     "particular."},
    {MetricSource::kSent, "treering_sent_bytes", MetricKind::kCounter, "bytes", "transport",
     "Bytes of messages that this rank has sent to others, by the transport that reaches them."},
};

}  // namespace

const char* name_of(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
    case MetricKind::kInfo:
      return "info";
  }
  return "unknown";
}

std::span<const MetricRow> metric_table() { return kMetrics; }

std::string metrics_markdown() {
  std::string text = "| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const MetricRow& row : metric_table())
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, name_of(row.kind), row.unit, row.labels, row.help);
  return text;
}

}  // namespace treering
