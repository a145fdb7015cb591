// SPDX-License-Identifier: Apache-2.0
// Which ranks are at fault where an operation stands still because not all have entered it. Decides alone, from what
// the ranks show.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace treering {

struct RankProgress {
  uint32_t rank = 0;
  uint64_t operation = 0, completed = 0;  // the last that it has entered, and completed
  std::optional<uint32_t> waiting_for;    // in an operation, or in a send or receive
  bool is_stopped = false;                // by a signal, a debugger or the kernel, as far as is known
};

// The ranks of `others` that have not entered `operation`, without those that another one holds up: they wait in an
// earlier operation, or in a send or receive for a rank that is stopped or in no call.
std::vector<uint32_t> absent_ranks(const std::vector<RankProgress>& others, uint64_t operation);

// From `first`, for which rank `own` waits, along the waits to the rank that holds them all up: `next` says for whom a rank
// waits, if it does. Ends with `own`, or a rank that it has twice, where ranks wait for one another.
std::vector<uint32_t> follow_waits(uint32_t own, uint32_t first,
                                   const std::function<std::optional<uint32_t>(uint32_t rank)>& next);

}  // namespace treering
