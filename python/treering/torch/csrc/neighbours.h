// SPDX-License-Identifier: Apache-2.0
// Which ranks of a group have ended, for waits in which no communicator can tell: two ranks that have not met yet.
//
// Each rank puts its process into the group's store. Ranks of the same machine look into /proc; of others nothing is
// known.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

namespace treering::pytorch {

using Clock = std::chrono::steady_clock;

// Calls `look` until it is true, or until `end`. A thread that waits in a store keeps others of the process from it, and
// would not hear of a death; so waits for what others put there poll.
template <typename Look>
bool poll(Clock::time_point end, Look look) {
  using std::chrono::microseconds;
  constexpr microseconds kFirstPause(100), kLastPause(10000);
  for (microseconds pause = kFirstPause; !look(); pause = std::min(pause * 2, kLastPause)) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void publish_process(c10d::Store& store, int rank);
// "rank 3 (pid 4711) has ended", else empty.
std::string death_of(c10d::Store& store, int rank);

}  // namespace treering::pytorch
