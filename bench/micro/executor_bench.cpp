// SPDX-License-Identifier: Apache-2.0
// What the executor costs besides moving data: finding the schedule of a size, walking one step, passing one message.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>

#include "algorithms/expand.h"
#include "communicator/calls/schedule_cache.h"
#include "transport/memory/mapped.h"

namespace treering {
namespace {

void ScheduleLookup(benchmark::State& state) {
  ScheduleCache cache(flat_plan(4), 0, Machine(), "", 0);
  size_t bytes = 1;
  for (auto _ : state) {
    benchmark::DoNotOptimize(cache.choose(Collective::kAllReduce, bytes, 0));
    bytes = bytes * 2 % (size_t{1} << 30) + 1;
  }
}
BENCHMARK(ScheduleLookup);

// A band's first use: the selection and the compilation of its programs.
void ScheduleDecision(benchmark::State& state) {
  for (auto _ : state) {
    ScheduleCache cache(flat_plan(4), 0, Machine(), "", 0);
    benchmark::DoNotOptimize(cache.choose(Collective::kAllReduce, size_t{1} << 20, 0));
  }
}
BENCHMARK(ScheduleDecision);

void ExpansionStep(benchmark::State& state) {
  Schedule schedule = kRing.build(flat_plan(64), 5, Shape());
  Expansion at(schedule);
  for (auto _ : state) {
    benchmark::DoNotOptimize(at.chunk());
    at.advance();
    if (at.done()) at = Expansion(schedule);
  }
}
BENCHMARK(ExpansionStep);

// Post, look, pop on one core: the instructions of a message, without the transfer of its cache line.
void MessageOnOneCore(benchmark::State& state) {
  auto there = std::make_unique<Fifo>(), back = std::make_unique<Fifo>();
  auto a = connect_in_process({there.get(), back.get(), nullptr, nullptr});
  auto b = connect_in_process({back.get(), there.get(), nullptr, nullptr});
  float value = 1;
  for (auto _ : state) {
    Message message;
    message.bytes = sizeof value;
    message.data = &value;
    if (!a->can_post()) state.SkipWithError("the FIFO is full");
    a->post(message);
    benchmark::DoNotOptimize(b->front());
    b->pop();
  }
}
BENCHMARK(MessageOnOneCore);

}  // namespace
}  // namespace treering

BENCHMARK_MAIN();
