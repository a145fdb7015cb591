// SPDX-License-Identifier: Apache-2.0
// Clock: the one by which deadlines, pauses and periods are measured.
#pragma once

#include <chrono>

namespace treering {

using Clock = std::chrono::steady_clock;

}  // namespace treering
