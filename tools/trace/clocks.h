// SPDX-License-Identifier: Apache-2.0
// How far the clocks of two hosts are apart, from calls that no rank leaves before the last one has entered. No I/O.
//
//   host a   |begin ............ end|            what is added to b's times to give a's lies between
//   host b            |begin .. end|             begin_a - end_b  and  end_a - begin_b
//
// A short call says it closely: to half the sum of the durations. The closest one of each second counts; between two
// the offset is interpolated, as clocks drift.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "trace.h"

namespace treering::trace {

struct ClockPoint {
  double at = 0;  // by the clock that is translated
  double offset = 0, error = 0;
};

// What one clock saw of a call: the last begin and the first end.
struct Meeting {
  double begin = 0, end = 0;
};
ClockPoint point_of(const Meeting& to, const Meeting& from);

// The closest point of each second, in the order of time.
std::vector<ClockPoint> closest_points(std::vector<ClockPoint> points);

// Translates times of one clock into those of another. Without points they are the same.
class ClockLine {
 public:
  ClockLine() = default;
  explicit ClockLine(std::vector<ClockPoint> points) : points_(closest_points(std::move(points))) {}
  double translate(double time) const;
  double error() const;  // at most
  const std::vector<ClockPoint>& points() const { return points_; }

 private:
  std::vector<ClockPoint> points_;
};

// The clocks of a trace, all translated to that of its first process.
class Clocks {
 public:
  // Throws std::runtime_error, with the hosts, where two clocks have no such call in common.
  explicit Clocks(const Trace& trace);
  double translate(size_t process, double time) const;
  double error(size_t process) const;
  size_t count() const { return steps_.size(); }
  // "node2 to node1: +1234.567 ms, known to 3.1 us by 88 calls"; a line for each clock but the first.
  std::vector<std::string> describe() const;

 private:
  struct Step {
    std::string clock, host;
    size_t towards = 0;  // another clock; the first one: itself
    ClockLine line;
    size_t calls = 0;
  };
  std::vector<Step> steps_;
  std::vector<size_t> clock_of_;  // by process
};

}  // namespace treering::trace
