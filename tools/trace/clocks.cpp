// SPDX-License-Identifier: Apache-2.0
#include "clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace treering::trace {
namespace {

constexpr double kSecond = 1e6;
// Every rank waits for each other one, directly or through others.
constexpr std::array<std::string_view, 5> kMeetings = {"allreduce", "barrier", "allgather", "reduce-scatter",
                                                       "alltoall"};

// What the clocks saw of the calls that all ranks meet in.
using SeenByClock = std::map<size_t, Meeting>;

std::vector<SeenByClock> meetings_of(const Trace& trace, const std::vector<size_t>& clock_of) {
  std::vector<SeenByClock> meetings;
  for (const TracedGroup& group : trace.communicators)
    for (const auto& [number, call] : group.calls) {
      const bool meets = std::find(kMeetings.begin(), kMeetings.end(), call.name) != kMeetings.end() &&
                         (call.bytes > 0 || call.name == "barrier");
      if (!meets) continue;
      SeenByClock seen;
      for (const CallRecord& record : call.records) {
        if (record.begin_is_late) continue;
        const auto [entry, is_new] = seen.emplace(clock_of[record.process], Meeting{record.begin, record.end});
        if (is_new) continue;
        entry->second.begin = std::max(entry->second.begin, record.begin);
        entry->second.end = std::min(entry->second.end, record.end);
      }
      if (seen.size() > 1) meetings.push_back(std::move(seen));
    }
  return meetings;
}

std::vector<ClockPoint> points_between(const std::vector<SeenByClock>& meetings, size_t to, size_t from) {
  std::vector<ClockPoint> points;
  for (const SeenByClock& seen : meetings) {
    const auto a = seen.find(to), b = seen.find(from);
    if (a != seen.end() && b != seen.end()) points.push_back(point_of(a->second, b->second));
  }
  return points;
}

}  // namespace

ClockPoint point_of(const Meeting& to, const Meeting& from) {
  const double least = to.begin - from.end, most = to.end - from.begin;
  return {from.begin, (least + most) / 2, std::abs(most - least) / 2};
}

std::vector<ClockPoint> closest_points(std::vector<ClockPoint> points) {
  std::sort(points.begin(), points.end(), [](const ClockPoint& a, const ClockPoint& b) { return a.at < b.at; });
  std::vector<ClockPoint> closest;
  double second = 0;
  for (const ClockPoint& point : points) {
    const double now = std::floor(point.at / kSecond);
    if (closest.empty() || now != second)
      closest.push_back(point);
    else if (point.error < closest.back().error)
      closest.back() = point;
    second = now;
  }
  return closest;
}

double ClockLine::translate(double time) const {
  if (points_.empty()) return time;
  const auto next = std::lower_bound(points_.begin(), points_.end(), time,
                                     [](const ClockPoint& point, double at) { return point.at < at; });
  if (next == points_.begin()) return time + next->offset;
  const ClockPoint& before = *(next - 1);
  if (next == points_.end()) return time + before.offset;
  const double share = (time - before.at) / (next->at - before.at);
  return time + before.offset + share * (next->offset - before.offset);
}

double ClockLine::error() const {
  double error = 0;
  for (const ClockPoint& point : points_) error = std::max(error, point.error);
  return error;
}

Clocks::Clocks(const Trace& trace) {
  for (const TracedProcess& process : trace.processes) {
    const auto known =
        std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.clock == process.clock; });
    clock_of_.push_back(static_cast<size_t>(known - steps_.begin()));
    if (known == steps_.end()) steps_.push_back({process.clock, process.host, 0, {}, 0});
  }
  const std::vector<SeenByClock> meetings = meetings_of(trace, clock_of_);
  std::vector<bool> is_joined(steps_.size(), false);
  std::vector<size_t> unread;
  if (!steps_.empty()) {
    is_joined[0] = true;
    unread = {0};
  }
  while (!unread.empty()) {
    const size_t to = unread.back();
    unread.pop_back();
    for (size_t from = 0; from < steps_.size(); ++from) {
      if (is_joined[from]) continue;
      std::vector<ClockPoint> points = points_between(meetings, to, from);
      if (points.empty()) continue;
      is_joined[from] = true;
      steps_[from].towards = to;
      steps_[from].calls = points.size();
      steps_[from].line = ClockLine(std::move(points));
      unread.push_back(from);
    }
  }
  const auto alone = std::find(is_joined.begin(), is_joined.end(), false);
  if (alone == is_joined.end()) return;
  throw std::runtime_error(fmt::format(
      "the clocks of {} and {} cannot be joined: no call that all ranks wait for one another in (allreduce, barrier, "
      "allgather, reduce-scatter, alltoall) is in the files of both",
      steps_[0].host, steps_[static_cast<size_t>(alone - is_joined.begin())].host));
}

double Clocks::translate(size_t process, double time) const {
  size_t clock = clock_of_[process];
  for (; clock != 0; clock = steps_[clock].towards) time = steps_[clock].line.translate(time);
  return time;
}

double Clocks::error(size_t process) const {
  double error = 0;
  for (size_t clock = clock_of_[process]; clock != 0; clock = steps_[clock].towards)
    error += steps_[clock].line.error();
  return error;
}

std::vector<std::string> Clocks::describe() const {
  std::vector<std::string> lines;
  for (size_t clock = 1; clock < steps_.size(); ++clock) {
    const Step& step = steps_[clock];
    const std::vector<ClockPoint>& points = step.line.points();
    lines.push_back(fmt::format("{} to {}: {:+.3f} ms, known to {:.1f} us by {} calls", step.host,
                                steps_[step.towards].host, points.front().offset / 1e3, step.line.error(), step.calls));
  }
  return lines;
}

}  // namespace treering::trace
