// SPDX-License-Identifier: Apache-2.0
// Hubs that have an endpoint that UCX cannot close yet (Endpoint::is_stuck): of communicators whose creation failed.
//
//   add() -> a thread calls Hub::end_stuck() until all have ended, or for kTriesFor after the last add()
//
// What is left then stays until the process ends, or the next add() starts the thread again. A forked child leaves its
// parent's hubs alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

namespace treering::ucx {

class Hub;

class StuckHubs {
 public:
  static constexpr auto kTriesFor = std::chrono::seconds(5);

  // No other thread uses the hub from here on.
  static void add(std::unique_ptr<Hub> hub);
  // How many of this process have not ended.
  static size_t count();
};

}  // namespace treering::ucx
