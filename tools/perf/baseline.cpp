// SPDX-License-Identifier: Apache-2.0
#include "baseline.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace treering::perf {
namespace {

using Json = nlohmann::json;

BaselineTimes times_of(const Json& place) {
  BaselineTimes times;
  times.mean_us = place.at("time").get<double>();
  if (place.contains("median") && !place["median"].is_null()) times.median_us = place["median"].get<double>();
  return times;
}

BaselineRow row_of(const Json& json) {
  BaselineRow row;
  row.bytes = json.at("size").get<size_t>();
  row.type = json.at("type").get<std::string>();
  row.operation = json.at("redop").get<std::string>();
  row.out_of_place = times_of(json.at("out_of_place"));
  if (json.contains("in_place")) row.in_place = times_of(json.at("in_place"));
  return row;
}

const BaselineRow* find(const Baseline& baseline, const Row& row) {
  for (const BaselineRow& old : baseline.rows) {
    if (old.bytes == row.bytes && old.type == row.type && old.operation == row.operation) return &old;
  }
  return nullptr;
}

std::string name_of(const Row& row) { return format_size(row.bytes) + " " + row.type + " " + row.operation; }

void compare_times(const Row& row, const char* place, const BaselineTimes& old, const PlaceResult& now,
                   double tolerance_percent, Comparison* comparison) {
  const bool medians = old.median_us && now.median_us;
  const double old_us = medians ? *old.median_us : old.mean_us, new_us = medians ? *now.median_us : now.time_us;
  if (old_us <= 0) return;
  ++comparison->compared;
  if (!medians) ++comparison->by_means;
  comparison->old_medians |= old.median_us.has_value();
  const double percent = 100 * (new_us / old_us - 1);
  if (percent <= tolerance_percent) return;
  char text[128];
  snprintf(text, sizeof(text), " %s: %s %.2f us, was %.2f us (+%.0f%%)", place, medians ? "median" : "mean", new_us,
           old_us, percent);
  comparison->regressed.push_back(name_of(row) + text);
}

// The rows that a run would have.
std::vector<RowKey> keys_of(const Options& options) {
  std::vector<RowKey> keys;
  for (const Point& point : options.points()) {
    for (const Operation* operation : options.operations) {
      if (!options.collective->reduces) {
        keys.push_back({point.bytes, point.type->name, "none"});
      } else if (is_defined(*point.type, *operation)) {
        keys.push_back({point.bytes, point.type->name, operation->name});
      }
    }
  }
  return keys;
}

// "float, half; sum; 8 B to 1 MiB"
std::string summary(const std::vector<RowKey>& keys) {
  std::set<std::string> types, operations;
  size_t least = SIZE_MAX, most = 0;
  for (const RowKey& key : keys) {
    types.insert(key.type);
    operations.insert(key.operation);
    least = std::min(least, key.bytes);
    most = std::max(most, key.bytes);
  }
  const auto joined = [](const std::set<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
  };
  return joined(types) + "; " + joined(operations) + "; " + format_size(least) +
         (most > least ? " to " + format_size(most) : "");
}

}  // namespace

std::optional<Baseline> parse_baseline(const std::string& text, std::string* error) {
  try {
    const Json document = Json::parse(text);
    Baseline baseline;
    const Json& config = document.at("config");
    baseline.collective = config.value("collective", "");
    baseline.ranks = static_cast<int>(config.at("devices").size());
    baseline.buffers = config.value("buffers", -1);
    // Files of earlier versions, which have buffers, are of host memory; those of nccl-tests have neither.
    baseline.memory = config.value("memory", baseline.buffers >= 0 ? memory_name(MemoryKind::kHost) : "");
    baseline.graph_launches = config.value("graph", 0);
    for (const Json& row : document.at("results")) baseline.rows.push_back(row_of(row));
    if (!baseline.rows.empty()) return baseline;
    *error = "it has no results";
  } catch (const Json::parse_error&) {
    *error = "it is not JSON; give a file that -J wrote";
  } catch (const Json::exception& exception) {
    // After the library's own "[json.exception....] ".
    const std::string what = exception.what();
    *error = "it is JSON, but not as -J writes it: " +
             what.substr(what.find("] ") == std::string::npos ? 0 : what.find("] ") + 2);
  }
  return std::nullopt;
}

std::optional<Baseline> read_baseline(const std::string& path, std::string* error) {
  std::ifstream file(path);
  if (!file) {
    *error = "it cannot be opened";
    return std::nullopt;
  }
  std::stringstream text;
  text << file.rdbuf();
  return parse_baseline(text.str(), error);
}

std::string why_not_comparable(const Baseline& baseline, const Options& options) {
  if (!baseline.collective.empty() && baseline.collective != options.collective->name) {
    return "it was made with the collective " + baseline.collective + ", this run is of " + options.collective->name +
           "; run " + baseline.collective + ", or give a file that -J wrote for " + options.collective->name;
  }
  if (baseline.ranks != options.ranks()) {
    return "it was made with " + std::to_string(baseline.ranks) + " ranks, this run has " +
           std::to_string(options.ranks()) + "; start as many, or give a file that -J wrote for " +
           std::to_string(options.ranks());
  }
  if (!baseline.memory.empty() && baseline.memory != memory_name(options.memory)) {
    return "it was made with --memory " + baseline.memory + ", this run has --memory " + memory_name(options.memory) +
           "; give the same, or another file";
  }
  if ((baseline.graph_launches > 0) != (options.graph_launches > 0)) {
    return "it was made with -G " + std::to_string(baseline.graph_launches) + ", this run has -G " +
           std::to_string(options.graph_launches) + "; give the same -G, or another file";
  }
  if (baseline.buffers >= 0 && baseline.buffers != static_cast<int>(options.buffers)) {
    return "it was made with -R " + std::to_string(baseline.buffers) + ", this run has -R " +
           std::to_string(static_cast<int>(options.buffers)) + "; give the same -R, or another file";
  }
  const std::vector<RowKey> own = keys_of(options), old(baseline.rows.begin(), baseline.rows.end());
  for (const RowKey& key : own) {
    if (std::find(old.begin(), old.end(), key) != old.end()) return "";
  }
  return "it has no row in common with this run: it has " + summary(old) + ", this run " + summary(own) +
         "; give -d, -o, -b, -e, -i and -f as then, or another file";
}

Comparison compare(const Baseline& baseline, const RunResults& results, double tolerance_percent) {
  Comparison comparison;
  for (const Row& row : results.rows) {
    const BaselineRow* old = find(baseline, row);
    if (!old) {
      comparison.missing.push_back(name_of(row));
      continue;
    }
    compare_times(row, "out-of-place", old->out_of_place, row.out_of_place, tolerance_percent, &comparison);
    if (row.in_place) compare_times(row, "in-place", old->in_place, *row.in_place, tolerance_percent, &comparison);
  }
  return comparison;
}

void print_comparison(std::FILE* out, const Options& options, const Comparison& comparison) {
  const char* file = options.baseline_file.c_str();
  for (const std::string& row : comparison.missing) fprintf(out, "# not in the baseline: %s\n", row.c_str());
  for (const std::string& row : comparison.regressed) fprintf(out, "# SLOWER than the baseline: %s\n", row.c_str());
  if (comparison.by_means > 0)
    fprintf(out, "# Baseline %s: %d times are compared by their means, which one slow call changes: %s\n", file,
            comparison.by_means,
            comparison.old_medians ? "this run has no medians; -I or -z 2 gives them on a stream"
                                   : "the file has no medians; write it anew with -J");
  fprintf(out, "# Baseline %s: %d times compared, %zu slower by more than %g%%\n", file, comparison.compared,
          comparison.regressed.size(), options.tolerance_percent);
}

}  // namespace treering::perf
