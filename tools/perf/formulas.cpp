// SPDX-License-Identifier: Apache-2.0
#include "formulas.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace treering::perf {

std::optional<size_t> parse_size(const std::string& text) {
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text[0]))) return std::nullopt;
  // strtod would take "0x10" and "1e3", which are not meant as sizes.
  const size_t number_end = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, number_end);
  const std::string unit = number_end == std::string::npos ? "" : text.substr(number_end);
  if (std::count(number.begin(), number.end(), '.') > 1 || unit.size() > 1) return std::nullopt;
  double factor = 1;
  if (!unit.empty()) {
    switch (std::toupper(static_cast<unsigned char>(unit[0]))) {
      case 'K':
        factor = 1024.0;
        break;
      case 'M':
        factor = 1024.0 * 1024;
        break;
      case 'G':
        factor = 1024.0 * 1024 * 1024;
        break;
      case 'T':
        factor = 1024.0 * 1024 * 1024 * 1024;
        break;
      default:
        return std::nullopt;
    }
  }
  const double bytes = std::strtod(number.c_str(), nullptr) * factor;
  // Above 2^53 a double no longer holds every whole number; no machine has a buffer of that size.
  if (bytes != std::floor(bytes) || bytes > 9007199254740992.0) return std::nullopt;
  return static_cast<size_t>(bytes);
}

std::string format_size(size_t bytes) {
  const std::pair<size_t, const char*> units[] = {
      {size_t{1} << 30, " GiB"}, {size_t{1} << 20, " MiB"}, {size_t{1} << 10, " KiB"}};
  for (const auto& [unit, name] : units) {
    if (bytes >= unit && bytes % unit == 0) return std::to_string(bytes / unit) + name;
  }
  return std::to_string(bytes) + " B";
}

std::vector<size_t> size_sequence(size_t min, size_t max, size_t step, size_t factor) {
  std::vector<size_t> sizes;
  for (size_t size = min; size <= max;) {
    sizes.push_back(size);
    const size_t next = factor > 1 ? size * factor : size + step;
    if (next <= size) break;
    size = next;
  }
  return sizes;
}

double algorithm_bandwidth(size_t bytes, double time_us) {
  return time_us > 0 ? static_cast<double>(bytes) / 1e9 / (time_us * 1e-6) : 0;
}

double limit_us(size_t bytes, int ranks, double copy_bandwidth) {
  return copy_bandwidth > 0 ? 2.0 * ranks * static_cast<double>(bytes) / (copy_bandwidth * 1e9) * 1e6 : 0;
}

IterationStats iteration_stats(std::vector<double> times_us) {
  IterationStats stats;
  const size_t count = times_us.size();
  if (count == 0) return stats;
  std::sort(times_us.begin(), times_us.end());
  // Nearest rank: the least time that is not below `percent` of all.
  const auto percentile = [&](size_t percent) {
    const size_t position = (count * percent + 99) / 100;
    return times_us[std::min(count, std::max<size_t>(position, 1)) - 1];
  };
  stats.min = times_us.front();
  stats.max = times_us.back();
  stats.average = std::accumulate(times_us.begin(), times_us.end(), 0.0) / static_cast<double>(count);
  stats.p50 = times_us[count / 2];
  stats.p95 = percentile(95);
  stats.p99 = percentile(99);
  double squares = 0;
  for (const double time : times_us) squares += (time - stats.average) * (time - stats.average);
  stats.stdev = std::sqrt(squares / static_cast<double>(count));
  stats.cv_percent = stats.average > 0 ? 100 * stats.stdev / stats.average : 0;
  return stats;
}

double median(std::vector<double> times_us) {
  if (times_us.empty()) return 0;
  const auto middle = times_us.begin() + static_cast<std::ptrdiff_t>(times_us.size() / 2);
  std::nth_element(times_us.begin(), middle, times_us.end());
  if (times_us.size() % 2 != 0) return *middle;
  return (*std::max_element(times_us.begin(), middle) + *middle) / 2;
}

double combine(Averaging averaging, const std::vector<double>& times_us) {
  if (times_us.empty()) return 0;
  switch (averaging) {
    case Averaging::kRankZero:
      return times_us.front();
    case Averaging::kMin:
      return *std::min_element(times_us.begin(), times_us.end());
    case Averaging::kMax:
      return *std::max_element(times_us.begin(), times_us.end());
    case Averaging::kMean:
      break;
  }
  return std::accumulate(times_us.begin(), times_us.end(), 0.0) / static_cast<double>(times_us.size());
}

}  // namespace treering::perf
