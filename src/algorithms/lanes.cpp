// SPDX-License-Identifier: Apache-2.0
#include "algorithms/lanes.h"

#include "algorithms/builder.h"

namespace treering {

Schedule send_schedule(uint32_t ranks, uint32_t rank, uint32_t peer) {
  const uint32_t to[] = {peer};
  ScheduleBuilder builder(rank, ranks, 1);
  builder.once({.flags = kInput | kSend | kFinal, .send_to = to});
  return builder.take();
}

Schedule receive_schedule(uint32_t ranks, uint32_t rank, uint32_t peer) {
  const uint32_t from[] = {peer};
  ScheduleBuilder builder(rank, ranks, 1);
  builder.once({.flags = kReceive | kStore | kFinal, .receive_from = from});
  return builder.take();
}

Schedule copy_schedule(uint32_t ranks, uint32_t rank) {
  ScheduleBuilder builder(rank, ranks, 1);
  builder.once({.flags = kInput | kStore | kFinal});
  return builder.take();
}

}  // namespace treering
