// SPDX-License-Identifier: Apache-2.0
// The results of a run: what measure.h fills and report.h, json_report.h and baseline.h read. Plain data.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "formulas.h"
#include "rank_group.h"

namespace treering::perf {

struct PlaceResult {   // out-of-place or in-place
  double time_us = 0;  // the mean over the calls
  // The median over the calls, which one slow call does not change; nothing where calls on a stream are not waited for.
  std::optional<double> median_us;
  double algorithm_gbps = 0;
  double bus_gbps = 0;
  bool checked = false;
  uint64_t wrong = 0;
  IterationStats stats;              // with -I
  std::vector<double> iteration_us;  // with -I: the slowest rank's time of each iteration
};

struct Row {
  size_t bytes = 0;
  size_t count = 0;
  std::string type;
  std::string operation;
  int root = -1;
  PlaceResult out_of_place;
  std::optional<PlaceResult> in_place;  // nothing for collectives that have no such form
  std::string algorithm;
  std::string protocol;
  std::string transport;
  int channels = 0;
  double copy_gbps = 0;  // with --limit
  double limit_us = 0;   // with --limit
};

struct RunResults {
  std::vector<Row> rows;
  uint64_t wrong_before = 0;  // in rows of endless cycles that are not kept
  std::vector<RankPlace> places;
  std::string start_time;
  int library_version = 0;

  uint64_t wrong() const {
    uint64_t all = wrong_before;
    for (const Row& row : rows) all += row.out_of_place.wrong + (row.in_place ? row.in_place->wrong : 0);
    return all;
  }
  bool checked() const {
    return std::any_of(rows.begin(), rows.end(), [](const Row& row) {
      return row.out_of_place.checked || (row.in_place && row.in_place->checked);
    });
  }
  double average_bus_gbps() const {
    double sum = 0;
    size_t places = 0;
    for (const Row& row : rows) {
      sum += row.out_of_place.bus_gbps + (row.in_place ? row.in_place->bus_gbps : 0);
      places += row.in_place ? 2 : 1;
    }
    return places == 0 ? 0 : sum / static_cast<double>(places);
  }
};

}  // namespace treering::perf
