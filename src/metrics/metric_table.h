// SPDX-License-Identifier: Apache-2.0
// Every metric, in one table: the text for Prometheus and the table in docs/metrics.md are made from its rows.
#pragma once

#include <span>
#include <string>

namespace treering {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram, kInfo };
const char* name_of(MetricKind kind);

// What a row's values are of.
enum class MetricSource : uint8_t {
  kLibrary,
  kCommunicators,
  kCalls,
  kBytes,
  kDurations,
  kFailures,
  kWaited,
  kWaitedFor,
  kSent,
};

struct MetricRow {
  MetricSource source;
  const char* name;  // ends with the unit, where it has one
  MetricKind kind;
  const char* unit;    // "": none
  const char* labels;  // besides those of the communicator
  const char* help;    // one line, which the page has, too
};

std::span<const MetricRow> metric_table();

// The table in docs/metrics.md.
std::string metrics_markdown();

}  // namespace treering
