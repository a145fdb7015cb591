// The results of a run: what measure.h fills and report.h, json_report.h and baseline.h read. Plain data.
#pragma once

#include <string>
#include <vector>

#include "formulas.h"
#include "rank_group.h"

namespace treering::perf {

struct PlaceResult {  // out-of-place or in-place
  double time_us = 0;
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
  PlaceResult in_place;
  std::string algorithm;
  std::string protocol;
  int channels = 0;
  double copy_gbps = 0;  // with --limit
  double limit_us = 0;   // with --limit
};

struct RunResults {
  std::vector<Row> rows;
  std::vector<RankPlace> places;
  std::string start_time;
  int library_version = 0;

  uint64_t wrong() const {
    uint64_t all = 0;
    for (const Row& row : rows) all += row.out_of_place.wrong + row.in_place.wrong;
    return all;
  }
  double average_bus_gbps() const {
    double sum = 0;
    for (const Row& row : rows) sum += row.out_of_place.bus_gbps + row.in_place.bus_gbps;
    return rows.empty() ? 0 : sum / (2.0 * static_cast<double>(rows.size()));
  }
};

}  // namespace treering::perf
