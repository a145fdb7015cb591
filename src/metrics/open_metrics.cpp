// SPDX-License-Identifier: Apache-2.0
#include "metrics/open_metrics.h"

#include <fmt/format.h>

#include <iterator>

#include "metrics/metric_table.h"
#include "metrics/text.h"

namespace treering {
namespace {

constexpr double kNsInSecond = 1e9;

double seconds_of(uint64_t ns) { return static_cast<double>(ns) / kNsInSecond; }

class MetricsText {
 public:
  explicit MetricsText(const TotalsTable& table) : table_(table) {}

  void add(const MetricRow& row, const ProcessLabels& process);
  std::string take() { return fmt::to_string(text_) + "# EOF\n"; }

 private:
  template <typename Value>
  void sample(const MetricRow& row, const char* suffix, const std::string& labels, Value value) {
    fmt::format_to(std::back_inserter(text_), "{}{}{{{}}} {}\n", row.name, suffix, labels, value);
  }
  static std::string labels_of(const TotalsKey& key) {
    return fmt::format("communicator=\"{}\",ranks=\"{}\",rank=\"{}\"", as_label_value(key.communicator), key.ranks,
                       key.rank);
  }
  template <typename ValueOf>
  void by_kind(const MetricRow& row, const ValueOf& value_of);
  void durations(const MetricRow& row);
  void waited_for(const MetricRow& row);
  void sent(const MetricRow& row);

  const TotalsTable& table_;
  fmt::memory_buffer text_;
};

template <typename ValueOf>
void MetricsText::by_kind(const MetricRow& row, const ValueOf& value_of) {
  for (const auto& [key, totals] : table_)
    for (const auto& [name, kind] : totals.kinds)
      sample(row, "_total", fmt::format("{},collective=\"{}\"", labels_of(key), name), value_of(kind));
}

void MetricsText::durations(const MetricRow& row) {
  for (const auto& [key, totals] : table_)
    for (const auto& [name, kind] : totals.kinds) {
      const std::string labels = fmt::format("{},collective=\"{}\"", labels_of(key), name);
      uint64_t count = 0;
      for (size_t i = 0; i < kDurationBuckets; ++i) {
        count += kind.durations[i];
        const std::string bound =
            i < kDurationBounds.size() ? fmt::format("{}", seconds_of(kDurationBounds[i])) : "+Inf";
        sample(row, "_bucket", fmt::format("{},le=\"{}\"", labels, bound), count);
      }
      sample(row, "_count", labels, count);
      sample(row, "_sum", labels, seconds_of(kind.duration_ns));
    }
}

void MetricsText::waited_for(const MetricRow& row) {
  for (const auto& [key, totals] : table_)
    for (const auto& [rank, ns] : totals.waited_for_ns) {
      const std::string peer = rank == key.rank ? "none" : std::to_string(rank);
      sample(row, "_total", fmt::format("{},peer=\"{}\"", labels_of(key), peer), seconds_of(ns));
    }
}

void MetricsText::sent(const MetricRow& row) {
  for (const auto& [key, totals] : table_)
    for (const auto& [transport, bytes] : totals.sent)
      sample(row, "_total", fmt::format("{},transport=\"{}\"", labels_of(key), transport), bytes);
}

void MetricsText::add(const MetricRow& row, const ProcessLabels& process) {
  fmt::format_to(std::back_inserter(text_), "# TYPE {} {}\n", row.name, name_of(row.kind));
  if (*row.unit != '\0') fmt::format_to(std::back_inserter(text_), "# UNIT {} {}\n", row.name, row.unit);
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n", row.name, as_label_value(row.help));
  switch (row.source) {
    case MetricSource::kLibrary:
      return sample(row, "_info",
                    fmt::format("version=\"{}\",host=\"{}\",pid=\"{}\"", as_label_value(process.version),
                                as_label_value(process.host), process.pid),
                    1);
    case MetricSource::kCommunicators:
      for (const auto& [key, totals] : table_) sample(row, "", labels_of(key), totals.communicators);
      return;
    case MetricSource::kCalls:
      return by_kind(row, [](const KindTotals& kind) { return kind.calls; });
    case MetricSource::kBytes:
      return by_kind(row, [](const KindTotals& kind) { return kind.bytes; });
    case MetricSource::kDurations:
      return durations(row);
    case MetricSource::kFailures:
      return by_kind(row, [](const KindTotals& kind) { return kind.failures; });
    case MetricSource::kWaited:
      return by_kind(row, [](const KindTotals& kind) { return seconds_of(kind.waited_ns); });
    case MetricSource::kWaitedFor:
      return waited_for(row);
    case MetricSource::kSent:
      return sent(row);
  }
}

}  // namespace

std::string open_metrics(const ProcessLabels& process, const TotalsTable& table) {
  MetricsText text(table);
  for (const MetricRow& row : metric_table()) text.add(row, process);
  return text.take();
}

}  // namespace treering
