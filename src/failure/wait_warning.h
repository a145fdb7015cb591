// SPDX-License-Identifier: Apache-2.0
// WaitWarning: when a rank that waits asks the others where they are, and says a moment later who holds it up: after a
// first time, and after twice that, four times, ... Decides alone: times in, what to do out.
//
//   waits         first     2 x first          moves   waits      first
//     |-------------|-ask-say--|-ask-say---------|--------|---------|-ask-say--
#pragma once

#include <algorithm>
#include <optional>

#include "core/clock.h"

namespace treering {

class WaitWarning {
 public:
  enum class Next { kNothing, kAsk, kSay };
  static constexpr Clock::duration kTimeForAnswers = std::chrono::milliseconds(700);

  // 0: never.
  explicit WaitWarning(Clock::duration first) : first_(first), next_(first) {}

  // `since`: when something last moved. `late`: by how much this look comes late. A process that did not run counts
  // from when it runs again: before that it could not have found the others.
  Next look(Clock::time_point now, Clock::time_point since, Clock::duration late) {
    if (late > kPause) runs_since_ = now;
    const Clock::duration time = waited(now, since);
    if (first_ <= Clock::duration() || time < first_) {
      next_ = first_;
      asked_.reset();
      return Next::kNothing;
    }
    if (asked_) {
      if (now - *asked_ < kTimeForAnswers) return Next::kNothing;
      asked_.reset();
      return Next::kSay;
    }
    if (time < next_) return Next::kNothing;
    while (next_ <= time) next_ *= 2;
    asked_ = now;
    return Next::kAsk;
  }
  // Instead of kSay: another rank says it.
  void leave_to_others() { asked_.reset(); }
  std::optional<Clock::time_point> asked() const { return asked_; }
  Clock::duration waited(Clock::time_point now, Clock::time_point since) const {
    return now - std::max(since, runs_since_);
  }

 private:
  static constexpr Clock::duration kPause = std::chrono::seconds(1);

  Clock::duration first_, next_;
  Clock::time_point runs_since_{};
  std::optional<Clock::time_point> asked_;
};

}  // namespace treering
