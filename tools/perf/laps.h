// SPDX-License-Identifier: Apache-2.0
// Laps: times of the parts of a timed loop, for the median.
//
// The turns are cut into at most kMaxLaps laps of as many turns each, two at least where there are many turns; the last
// lap may have fewer. The clock is read only at the end of a lap: reading it after every call would add a tenth to the
// time of the smallest messages. A call that the system preempts spoils its own lap alone, and the median is that of
// the other laps.
#pragma once

#include <algorithm>
#include <vector>

#include "formulas.h"

namespace treering::perf {

class Laps {
 public:
  static constexpr int kMaxLaps = 100;
  static constexpr int kManyTurns = 10;

  explicit Laps(int turns) : turns_of_lap_(std::max((turns + kMaxLaps - 1) / kMaxLaps, turns < kManyTurns ? 1 : 2)) {
    laps_us_.reserve(kMaxLaps);  // nothing is allocated while the clock runs
  }

  void begin(double now_us) { begin_us_ = now_us; }
  // Follows each turn; asks `clock` for the time in us where a lap is over.
  template <typename Clock>
  void turn_done(Clock clock) {
    if (++turns_ == turns_of_lap_) end_lap(clock());
  }
  // Follows the last turn.
  template <typename Clock>
  void end(Clock clock) {
    if (turns_ > 0) end_lap(clock());
  }
  // The median of the laps, as the time of one turn.
  double median_us() const { return median(laps_us_); }

 private:
  void end_lap(double now_us) {
    laps_us_.push_back((now_us - begin_us_) / turns_);
    begin_us_ = now_us;
    turns_ = 0;
  }

  int turns_of_lap_;
  int turns_ = 0;  // of the lap under way
  double begin_us_ = 0;
  std::vector<double> laps_us_;  // for each lap the time of a turn
};

}  // namespace treering::perf
