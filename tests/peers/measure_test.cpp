// SPDX-License-Identifier: Apache-2.0
// What is measured while a communicator is created, also where the machine is too busy for it.
#include "peers/measure.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <thread>

namespace treering::testing {
namespace {

struct Pair {
  AreaLayout layout = area_layout(2, 1, 1 << 20);
  std::shared_ptr<Segment> memory;
  Machine machine;

  // Both ranks' threads, on `cores` if any are given.
  void measure(const cpu_set_t* cores = nullptr) {
    ASSERT_TRUE(Segment::map_private(layout.total_bytes, &memory).ok());
    const AreaView views[] = {layout.view(memory->base(), 0), layout.view(memory->base(), 1)};
    machine = measure_core();
    std::thread threads[2];
    for (const bool first : {false, true})
      threads[first] = std::thread([&, first] {
        if (cores != nullptr) sched_setaffinity(0, sizeof *cores, cores);
        Machine unused;
        measure_pair(first, views[0], views[1], first ? &machine : &unused);
      });
    for (std::thread& thread : threads) thread.join();
  }
};

TEST(MeasurePair, TakesTheTimesOfCaches) {
  Machine machine;
  take_pair_times(0.4e-6, 2.4e-6, 16384, &machine);
  EXPECT_NEAR(machine.alpha_us, 0.2, 1e-9);
  EXPECT_NEAR(machine.exchange_gbps, 2 * 16384 / 2e-6 / 1e9, 1e-9);
}

TEST(MeasurePair, LeavesWhatWasDisturbed) {
  const Machine defaults;
  Machine machine;
  take_pair_times(52e-6, 60e-6, 16384, &machine);  // the turns of threads
  EXPECT_EQ(machine.alpha_us, defaults.alpha_us);
  EXPECT_EQ(machine.exchange_gbps, defaults.exchange_gbps);
  for (const double transfer : {0.3e-6, 0.4e-6, 0.401e-6}) {  // no slower than the line alone
    take_pair_times(0.4e-6, transfer, 16384, &machine);
    EXPECT_NEAR(machine.alpha_us, 0.2, 1e-9);
    EXPECT_EQ(machine.exchange_gbps, defaults.exchange_gbps);
  }
}

// On a busy machine the two threads rarely have both cores at once: until they have.
TEST(MeasurePair, MeasuresWhatTwoThreadsDo) {
  bool measured = false;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (!measured && std::chrono::steady_clock::now() < until) {
    Pair pair;
    pair.measure();
    measured = pair.machine.alpha_us != Machine().alpha_us && pair.machine.exchange_gbps != Machine().exchange_gbps;
  }
  EXPECT_TRUE(measured);
}

TEST(MeasurePair, KeepsTheDefaultsWhenBothShareACore) {
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  for (int round = 0; round < 20; ++round) {  // which figures came out wrong, was chance
    Pair pair;
    pair.measure(&one);
    EXPECT_EQ(pair.machine.alpha_us, Machine().alpha_us);
    EXPECT_EQ(pair.machine.exchange_gbps, Machine().exchange_gbps);
  }
}

}  // namespace
}  // namespace treering::testing
