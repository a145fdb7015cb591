// SPDX-License-Identifier: Apache-2.0
// Comparison of a run with an earlier one, from its JSON file.
//
// Rows are matched by size, type and operation; both places are compared. Runs of other collectives, of different
// numbers of ranks, on other memory or buffers or by graphs instead of calls are refused, and those without a row in
// common: their difference would say nothing.
//
// Medians are compared, as one call that the system preempts may multiply a mean. Where one of the two has none (a file
// of an earlier version or of nccl-tests, calls on a stream), means are.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "options.h"
#include "results.h"

namespace treering::perf {

// What tells a row from the others.
struct RowKey {
  size_t bytes = 0;
  std::string type;
  std::string operation;
  bool operator==(const RowKey&) const = default;
};

struct BaselineTimes {
  double mean_us = 0;  // 0: the row has none
  std::optional<double> median_us;
};

struct BaselineRow : RowKey {
  BaselineTimes out_of_place;
  BaselineTimes in_place;
};

struct Baseline {
  std::string collective;  // empty: the file does not say
  int ranks = 0;
  int buffers = -1;    // -1: the file does not say
  std::string memory;  // empty: the file does not say
  int graph_launches = 0;
  std::vector<BaselineRow> rows;
};

struct Comparison {
  int compared = 0;                    // times that were in both
  int by_means = 0;                    // of these, where a median is missing
  bool old_medians = false;            // the baseline has medians
  std::vector<std::string> regressed;  // one line each: which row, both times, by how much
  std::vector<std::string> missing;    // rows of this run that the baseline does not have
};

// Nothing, and `error` says why, when the text is no result file.
std::optional<Baseline> parse_baseline(const std::string& text, std::string* error);
// The same from a file.
std::optional<Baseline> read_baseline(const std::string& path, std::string* error);
// Empty when this run may be compared with the baseline, else why not.
std::string why_not_comparable(const Baseline& baseline, const Options& options);

Comparison compare(const Baseline& baseline, const RunResults& results, double tolerance_percent);
void print_comparison(std::FILE* out, const Options& options, const Comparison& comparison);

}  // namespace treering::perf
