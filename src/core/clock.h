// SPDX-License-Identifier: Apache-2.0
// The clock by which deadlines, pauses and periods are measured.
#pragma once

#include <chrono>

namespace treering {

using Clock = std::chrono::steady_clock;

inline double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
inline double seconds_since(Clock::time_point begin) { return seconds(Clock::now() - begin); }

}  // namespace treering
