// SPDX-License-Identifier: Apache-2.0
#include "algorithms/properties.h"

#include <algorithm>

#include "algorithms/expand.h"

namespace treering {

ScheduleProperties properties_of(const Schedule& schedule) {
  ScheduleProperties result;
  std::vector<uint8_t> uses(schedule.chunks, 0);
  for (Expansion at(schedule); !at.done(); at.advance()) {
    const Step& step = at.step();
    ++result.steps;
    if (step.flags & kSend) {
      result.messages_sent += step.send_count;
      result.chunks_sent += static_cast<uint64_t>(step.send_count) * step.span;
    }
    if (step.flags & kReceive) {
      result.messages_received += step.receive_count;
      result.chunks_received += static_cast<uint64_t>(step.receive_count) * step.span;
    }
    if (step.flags & kReduce) {
      const uint64_t local = (step.flags & (kInput | kOutput | kScratch)) != 0;
      result.chunks_reduced += (step.receive_count + local) * step.span;
    }
    if ((step.flags & kInput) == 0) continue;
    // A send without arithmetic hands the input itself to every peer of its list, and a local copy is one
    // more use.
    uint32_t times = 1;
    if ((step.flags & kReduce) == 0)
      times = ((step.flags & kSend) ? step.send_count : 0u) + ((step.flags & (kStore | kStoreScratch)) != 0);
    for (uint32_t i = 0; i < step.span; ++i) {
      uint8_t& used = uses[at.chunk(i)];
      used = static_cast<uint8_t>(std::min<uint32_t>(used + times, 2));
    }
  }
  result.input_used_once = std::all_of(uses.begin(), uses.end(), [](uint8_t used) { return used <= 1; });
  return result;
}

}  // namespace treering
