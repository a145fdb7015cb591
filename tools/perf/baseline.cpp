#include "baseline.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace treering::perf {
namespace {

using Json = nlohmann::json;

BaselineRow row_of(const Json& json) {
  BaselineRow row;
  row.bytes = json.at("size").get<size_t>();
  row.type = json.at("type").get<std::string>();
  row.operation = json.at("redop").get<std::string>();
  row.out_of_place_us = json.at("out_of_place").at("time").get<double>();
  if (json.contains("in_place")) row.in_place_us = json.at("in_place").at("time").get<double>();
  return row;
}

const BaselineRow* find(const Baseline& baseline, const Row& row) {
  for (const BaselineRow& old : baseline.rows) {
    if (old.bytes == row.bytes && old.type == row.type && old.operation == row.operation) return &old;
  }
  return nullptr;
}

std::string name_of(const Row& row) { return format_size(row.bytes) + " " + row.type + " " + row.operation; }

void compare_time(const Row& row, const char* place, double old_us, double new_us, double tolerance_percent,
                  Comparison* comparison) {
  if (old_us <= 0) return;
  ++comparison->compared;
  const double percent = 100 * (new_us / old_us - 1);
  if (percent <= tolerance_percent) return;
  char text[128];
  snprintf(text, sizeof(text), " %s: %.2f us, was %.2f us (+%.0f%%)", place, new_us, old_us, percent);
  comparison->regressed.push_back(name_of(row) + text);
}

}  // namespace

std::optional<Baseline> parse_baseline(const std::string& text, std::string* error) {
  try {
    const Json document = Json::parse(text);
    Baseline baseline;
    const Json& config = document.at("config");
    baseline.ranks = static_cast<int>(config.at("devices").size());
    baseline.buffers = config.value("buffers", -1);
    for (const Json& row : document.at("results")) baseline.rows.push_back(row_of(row));
    if (!baseline.rows.empty()) return baseline;
    *error = "it has no results";
  } catch (const Json::exception& exception) {
    *error = std::string("it is not a result file of -J: ") + exception.what();
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
  if (baseline.ranks != options.ranks()) {
    return "it was made with " + std::to_string(baseline.ranks) + " ranks, this run has " +
           std::to_string(options.ranks());
  }
  if (baseline.buffers >= 0 && baseline.buffers != static_cast<int>(options.buffers)) {
    return "it was made with -R " + std::to_string(baseline.buffers) + ", this run has -R " +
           std::to_string(static_cast<int>(options.buffers));
  }
  return "";
}

Comparison compare(const Baseline& baseline, const RunResults& results, double tolerance_percent) {
  Comparison comparison;
  for (const Row& row : results.rows) {
    const BaselineRow* old = find(baseline, row);
    if (!old) {
      comparison.missing.push_back(name_of(row));
      continue;
    }
    compare_time(row, "out-of-place", old->out_of_place_us, row.out_of_place.time_us, tolerance_percent, &comparison);
    if (row.in_place)
      compare_time(row, "in-place", old->in_place_us, row.in_place->time_us, tolerance_percent, &comparison);
  }
  return comparison;
}

}  // namespace treering::perf
