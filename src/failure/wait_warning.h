// SPDX-License-Identifier: Apache-2.0
// WaitWarning: when a rank says for whom it waits: after a first time, and after twice that, four times, ...
#pragma once

#include "core/clock.h"

namespace treering {

class WaitWarning {
 public:
  // 0: never.
  explicit WaitWarning(Clock::duration first) : first_(first), next_(first) {}

  void begin() { next_ = first_; }
  bool is_due(Clock::duration waited) {
    if (first_ <= Clock::duration() || waited < next_) return false;
    while (next_ <= waited) next_ *= 2;
    return true;
  }

 private:
  Clock::duration first_, next_;
};

}  // namespace treering
