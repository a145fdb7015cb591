// SPDX-License-Identifier: Apache-2.0
// Properties of one rank's schedule, computed from its expansion: what the executor may rely on, and the
// numbers of docs/schedules.md.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/schedule.h"

namespace treering {

struct ScheduleProperties {
  uint64_t steps = 0;          // executed steps
  uint64_t messages_sent = 0;  // one for each peer of each sending step
  uint64_t messages_received = 0;
  uint64_t chunks_sent = 0;  // messages weighted with their span; bytes = chunks * slice bytes / chunks of a slice
  uint64_t chunks_received = 0;
  uint64_t chunks_reduced = 0;  // operands of reductions, in chunks
  // Every chunk of the input is used exactly once: in one send to a single peer, as one operand of one local
  // reduction, or in one local copy. Then no rank can need the input of a chunk any more once its result
  // exists, and peers may read inputs and place results without a copy even when input and output are the
  // same buffer.
  bool input_used_once = true;
};

ScheduleProperties properties_of(const Schedule& schedule);

}  // namespace treering
