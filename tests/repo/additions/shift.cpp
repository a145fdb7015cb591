// SPDX-License-Identifier: Apache-2.0
// The algorithm of a collective that additions_test.py adds: each rank sends its block to the next.
#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

Schedule build(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const uint32_t before[] = {(rank + n - 1) % n}, after[] = {(rank + 1) % n};
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  builder.once({.flags = kInput | kSend, .chunk = rank, .send_to = after});
  builder.once({.flags = kReceive | kStore | kFinal, .chunk = before[0], .receive_from = before});
  return builder.take();
}

Work work(const CostInput& in) {
  Work w;
  w.rounds = 1;
  w.messages = 2;
  w.exchanged_bytes = w.sent_bytes = in.bytes / in.ranks;
  w.chunks = in.ranks;
  return w;
}

}  // namespace

const Algorithm kShiftDirect = {.collective = Collective::kShift,
                                .name = "direct",
                                .description = "each rank sends its block to the next",
                                .source = "none",
                                .rounding = "never",
                                .computed_once = true,
                                .min_ranks = 1,
                                .max_ranks = 1024,
                                .channels = 1,
                                .build = build,
                                .work = work};

}  // namespace treering
