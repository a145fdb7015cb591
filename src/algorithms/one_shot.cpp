// SPDX-License-Identifier: Apache-2.0
// One-shot allreduce: everyone sends its whole input to everyone and reduces all of them itself.
//
//   0 --> 1 2 3      1 --> 0 2 3      ...      then on every rank: result = 0 + 1 + 2 + 3
//
// One message latency, for tiny buffers. All ranks combine in rank order, so the results are bit-identical.
// Recursive doubling (Thakur, Rabenseifner, Gropp, IJHPCA 2005) with one round of radix n instead of log2 n
// of 2.
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

Schedule build(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  std::vector<uint32_t> ascending, rotated;
  for (uint32_t i = 0; i < n; ++i)
    if (i != rank) ascending.push_back(i);
  for (uint32_t i = 1; i < n; ++i) rotated.push_back((rank + i) % n);

  ScheduleBuilder builder(rank, n, 1);
  builder.once({.flags = kInput | kSend, .send_to = rotated});
  builder.once(
      {.flags = kReceive | kReduce | kInput | kStore | kFinal, .receive_from = ascending, .local_position = rank});
  return builder.take();
}

// T = a + n/2 B (one pass that fills n-1 slots; none when direct) + n B (operands of the reduction)
Work work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = 1;
  w.messages = 2 * (n - 1);
  w.exchanged_bytes = (in.direct ? n - 1 : n) * in.bytes;
  w.reduce_bytes = n * in.bytes;
  w.memory_bytes = (in.direct ? n + 1 : 2) * in.bytes;
  w.sent_bytes = (n - 1) * in.bytes;
  return w;
}

}  // namespace

const Algorithm kOneShot = {.collective = Collective::kAllReduce,
                            .name = "one-shot",
                            .description = "everyone sends everything to everyone; one message latency",
                            .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005 (recursive doubling, radix n)",
                            .rounding = "once",
                            .forwards_partial_sums = false,
                            .input_used_once = false,
                            .rank_ordered = true,
                            .computed_once = false,
                            .all_peers = true,
                            .mailbox = true,
                            .min_ranks = 1,
                            .max_ranks = 1024,
                            .channels = 1,
                            .pipelined = false,
                            .build = build,
                            .work = work};

}  // namespace treering
