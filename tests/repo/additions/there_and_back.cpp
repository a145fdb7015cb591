// SPDX-License-Identifier: Apache-2.0
// An algorithm that additions_test.py adds: sums go up the ranks to the last one, results come back.
//
//   0 --> 1 --> 2 --> 3      partial sums
//   0 <-- 1 <-- 2 <-- 3      the sum
#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

Schedule build(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const uint32_t before[] = {rank - 1}, after[] = {rank + 1};
  ScheduleBuilder builder(rank, n, 1);
  if (rank == 0) {
    builder.once({.flags = kInput | kSend, .send_to = after});
    builder.once({.flags = kReceive | kStore | kFinal, .receive_from = after});
  } else if (rank == n - 1) {
    builder.once({.flags = kReceive | kReduce | kInput | kStore | kSend | kFinal,
                  .receive_from = before,
                  .send_to = before,
                  .local_position = 1});
  } else {
    builder.once(
        {.flags = kReceive | kReduce | kInput | kSend, .receive_from = before, .send_to = after, .local_position = 1});
    builder.once({.flags = kReceive | kStore | kSend | kFinal, .receive_from = after, .send_to = before});
  }
  return builder.take();
}

Work work(const CostInput& in) {
  Work w;
  w.rounds = 2.0 * (in.ranks - 1);
  w.messages = 4;
  w.exchanged_bytes = w.sent_bytes = 2 * in.bytes;
  w.reduce_bytes = w.memory_bytes = 2 * in.bytes;
  return w;
}

}  // namespace

const Algorithm kThereAndBack = {.collective = Collective::kAllReduce,
                                 .name = "there-and-back",
                                 .description = "up the ranks, and back",
                                 .source = "none",
                                 .rounding = "once a hop",
                                 .forwards_partial_sums = true,
                                 .rank_ordered = true,
                                 .computed_once = true,
                                 .min_ranks = 1,
                                 .max_ranks = 1024,
                                 .channels = 1,
                                 .build = build,
                                 .work = work};

}  // namespace treering
