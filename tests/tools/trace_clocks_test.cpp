// SPDX-License-Identifier: Apache-2.0
// Clocks are joined to within the error that is told; random jobs with clocks that drift.
#include "clocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "support/seed.h"

namespace treering::trace {
namespace {

Trace trace_of(size_t hosts) {
  Trace trace;
  for (size_t host = 0; host < hosts; ++host) {
    TracedProcess process;
    process.host = "node" + std::to_string(host);
    process.clock = process.host;
    process.rank = static_cast<uint32_t>(host);
    trace.processes.push_back(process);
  }
  trace.communicators.push_back({"steps", "id", static_cast<uint32_t>(hosts), {}, {}, {}});
  for (size_t host = 0; host < hosts; ++host) trace.communicators[0].processes[static_cast<uint32_t>(host)] = {host};
  return trace;
}

CallRecord record_of(size_t host, double begin, double end) {
  CallRecord record;
  record.process = host;
  record.rank = static_cast<uint32_t>(host);
  record.begin = begin;
  record.end = end;
  return record;
}

TEST(TraceClocks, ACallBoundsTheOffset) {
  // True times: a is in from 0 to 10, b from 4 to 12; b's clock shows 100 more.
  const ClockPoint point = point_of({0, 10}, {104, 112});
  EXPECT_EQ(point.offset, (0 - 112 + 10 - 104) / 2.0);
  EXPECT_EQ(point.error, (10 - 104 - (0 - 112)) / 2.0);
  EXPECT_LE(std::abs(point.offset + 100), point.error);
}

TEST(TraceClocks, TheClosestOfEachSecondCounts) {
  const auto points = closest_points({{2.5e6, 1, 30}, {0.1e6, 2, 20}, {0.2e6, 3, 10}, {2.6e6, 4, 40}, {0.3e6, 5, 15}});
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].offset, 3);
  EXPECT_EQ(points[1].offset, 1);
  const ClockLine line(points);
  EXPECT_EQ(line.error(), 30);
  EXPECT_EQ(line.translate(0), 3);
  EXPECT_EQ(line.translate(9e6), 9e6 + 1);
  EXPECT_NEAR(line.translate(1.35e6), 1.35e6 + 2, 1e-6);
}

TEST(TraceClocks, OneClockIsLeftAsItIs) {
  Trace trace = trace_of(2);
  trace.processes[1].clock = trace.processes[0].clock;
  const Clocks clocks(trace);
  EXPECT_EQ(clocks.count(), 1u);
  EXPECT_EQ(clocks.translate(1, 17.25), 17.25);
  EXPECT_EQ(clocks.error(1), 0);
}

TEST(TraceClocks, WhatRootsAloneKnowJoinsNothing) {
  Trace trace = trace_of(2);
  const auto add = [&](uint64_t number, const char* name, uint64_t bytes, bool late) {
    TracedCall& call = trace.communicators[0].calls[number];
    call = {name, bytes, {record_of(0, 0, 10), record_of(1, 0, 10)}};
    call.records[1].begin_is_late = late;
  };
  add(1, "broadcast", 8, false);
  add(2, "allreduce", 0, false);
  add(3, "allreduce", 8, true);
  EXPECT_THROW(
      {
        try {
          const Clocks clocks(trace);
        } catch (const std::runtime_error& error) {
          EXPECT_NE(std::string(error.what()).find("the clocks of node0 and node1 cannot be joined"),
                    std::string::npos);
          throw;
        }
      },
      std::runtime_error);
  add(4, "barrier", 0, false);
  EXPECT_EQ(Clocks(trace).count(), 2u);
}

// Any rank leaves after the last has entered, by true time.
TEST(TraceClocks, TimesAreTrueToTheErrorThatIsTold) {
  std::mt19937_64 random(test_seed());
  const auto between = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  for (int time = 0; time < 50; ++time) {
    const size_t hosts = 2 + random() % 4;
    Trace trace = trace_of(hosts);
    std::vector<double> offsets, drifts;
    for (size_t host = 0; host < hosts; ++host) {
      offsets.push_back(between(-1e9, 1e9));
      drifts.push_back(between(-20e-6, 20e-6));
    }
    const auto shown = [&](size_t host, double at) { return at * (1 + drifts[host]) + offsets[host]; };
    double now = 0;
    for (uint64_t number = 1; number <= 400; ++number) {
      now += between(0, 50'000);
      TracedCall& call = trace.communicators[0].calls[number];
      call.name = "allreduce";
      call.bytes = 8;
      std::vector<double> begins;
      double last = 0;
      for (size_t host = 0; host < hosts; ++host) begins.push_back(now + between(0, random() % 4 == 0 ? 5'000 : 10));
      for (const double begin : begins) last = std::max(last, begin);
      for (size_t host = 0; host < hosts; ++host)
        call.records.push_back(record_of(host, shown(host, begins[host]), shown(host, last + between(1, 30))));
      now = last;
    }
    const Clocks clocks(trace);
    ASSERT_EQ(clocks.count(), hosts);
    EXPECT_EQ(clocks.describe().size(), hosts - 1);
    for (size_t host = 0; host < hosts; ++host) {
      // 40 ppm in a second, at most, beside what is told.
      const double allowed = clocks.error(host) + 2 * 40;
      for (double at = 0.5e6; at < now; at += 0.7e6)
        ASSERT_NEAR(clocks.translate(host, shown(host, at)), shown(0, at), allowed) << "host " << host << " at " << at;
    }
  }
}

}  // namespace
}  // namespace treering::trace
