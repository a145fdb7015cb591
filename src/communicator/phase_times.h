// SPDX-License-Identifier: Apache-2.0
// What the creation of a communicator spent its time on, for the log.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <string>

#include "core/clock.h"

namespace treering {

class PhaseTimes {
 public:
  // What has been done since the last call, or since the beginning.
  void done(const char* what) {
    const Clock::time_point now = Clock::now();
    fmt::format_to(std::back_inserter(text_), "{}{} {:.1f}", text_.empty() ? "" : ", ", what,
                   milliseconds(now - last_));
    last_ = now;
  }
  // "info exchange 0.3, proof of links 1.2 (ms), 1.5 in all"
  std::string text() const { return fmt::format("{} (ms), {:.1f} in all", text_, milliseconds(last_ - begin_)); }

 private:
  static double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  std::string text_;
};

}  // namespace treering
