// What is measured while a communicator is created, also where the machine is too busy for it.
#include "communicator/measure.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace treering::testing {
namespace {

struct Pair {
  AreaLayout layout{2, 1, 1 << 20};
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

TEST(MeasurePair, FindsWhatACacheCanDo) {
  Pair pair;
  pair.measure();
  EXPECT_GT(pair.machine.alpha_us, 0);
  EXPECT_LE(pair.machine.alpha_us, 3);
  EXPECT_GT(pair.machine.exchange_gbps, 0);
  EXPECT_LE(pair.machine.exchange_gbps, std::max(pair.machine.reduce_gbps, Machine().exchange_gbps));
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
