// SPDX-License-Identifier: Apache-2.0
// OpenMetrics 1.0 text, as Prometheus reads it.
#pragma once

#include <string>

#include "metrics/totals.h"

namespace treering {

inline constexpr const char* kOpenMetricsType = "application/openmetrics-text; version=1.0.0; charset=utf-8";

struct ProcessLabels {
  std::string version, host;
  int pid = 0;
};

std::string open_metrics(const ProcessLabels& process, const TotalsTable& table);

}  // namespace treering
