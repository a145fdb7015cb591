// SPDX-License-Identifier: Apache-2.0
// Sizes and bandwidths as nccl-tests defines them, so that the figures of both tools can be laid side by
// side.
//
// Invariant: times are in microseconds, sizes in bytes, bandwidths in 1e9 bytes a second. K, M and G are
// powers of 1024. No state, no I/O.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace treering::perf {

// "8", "64K", "1.5M", "2G"; nothing when the text is not a whole number of bytes.
std::optional<size_t> parse_size(const std::string& text);

// "64 KiB": for messages; exact sizes only, else plain bytes.
std::string format_size(size_t bytes);

// The sizes from `min` to `max`: multiplied by `factor` when it is above 1, else advanced by `step`.
std::vector<size_t> size_sequence(size_t min, size_t max, size_t step, size_t factor);

// Algorithm bandwidth: bytes over time.
double algorithm_bandwidth(size_t bytes, double time_us);

// The least time of an allreduce: each input read once and each output written once (2 x ranks x bytes), over
// what `ranks` threads copy together (reads and writes counted).
double limit_us(size_t bytes, int ranks, double copy_bandwidth);

// Statistics over the iterations of one measurement.
struct IterationStats {
  double min = 0;
  double max = 0;
  double average = 0;
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
  double stdev = 0;
  double cv_percent = 0;  // standard deviation over the average
};

IterationStats iteration_stats(std::vector<double> times_us);

// The time in the middle, or the mean of the two in the middle; 0 where there is none.
double median(std::vector<double> times_us);

// How the time of a point is made of the times of the ranks (-a).
enum class Averaging { kRankZero = 0, kMean = 1, kMin = 2, kMax = 3 };

double combine(Averaging averaging, const std::vector<double>& times_us);

}  // namespace treering::perf
