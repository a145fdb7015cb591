// SPDX-License-Identifier: Apache-2.0
// WaitTime: since when the deadline of an operation counts. No clock: times in, a time out.
//
//   begin()     moved             moved               look at a rank
//     |-----------|-----------------|-------------------|          it has a connection: since it last moved
//           '-- the connection to that rank is away ----'          since that, whatever else moves
//
// A long operation that moves is not stopped. What moves may have been on its way before the others failed and left,
// and says nothing of a rank that nothing goes to or comes from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace treering {

class WaitTime {
 public:
  explicit WaitTime(Clock::time_point now) : began_(now), moved_(now) {}

  void begin(Clock::time_point now, uint64_t steps) {
    began_ = moved_ = now;
    steps_ = steps;
  }
  // Whether it has moved since the last look.
  bool look(Clock::time_point now, uint64_t steps) {
    if (steps == steps_) return false;
    steps_ = steps;
    moved_ = now;
    return true;
  }
  // `away`: since when there has been no connection to the rank that is waited for; nothing: there is one. What was away
  // before the operation counts from its begin.
  Clock::time_point since(const std::optional<Clock::time_point>& away) const {
    return away ? std::min(moved_, std::max(began_, *away)) : moved_;
  }

 private:
  Clock::time_point began_, moved_;
  uint64_t steps_ = 0;
};

}  // namespace treering
