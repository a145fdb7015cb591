// SPDX-License-Identifier: Apache-2.0
// Two-shot allreduce: rank j gets chunk j of everyone, reduces all of them in one pass and hands the result
// to all.
//
//        first shot               reduce           second shot
//   r --chunk j--> j     chunk j = 0+1+...+n-1     j --chunk j--> all
//
// The middle step is fused: the sums go to this rank's output and to all peers in the same pass over memory.
// It waits for room in FIFOs that still hold the first shot until the peers do the same step, hence FIFO
// depth 2.
//
// It is the direct form of reduce-scatter + allgather that inference engines use inside a host ("custom
// allreduce"); Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 19(1), 2005 describes it as pairwise exchange.
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
  for (uint32_t i = 1; i < n; ++i) rotated.push_back((rank + i) % n);  // not everyone starts at rank 0
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): n > 0
  const uint32_t after[] = {(rank + 1) % n};
  const uint32_t before[] = {(rank + n - 1) % n};

  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/2);
  builder.repeat(n - 1, 1, 1, {{.flags = kInput | kSend, .chunk = after[0], .send_to = after}});
  builder.once({.flags = kReceive | kReduce | kInput | kStore | kSend | kFinal,
                .chunk = rank,
                .receive_from = ascending,
                .send_to = rotated,
                .local_position = rank});
  builder.repeat(n - 1, -1, -1, {{.flags = kReceive | kStore | kFinal, .chunk = before[0], .receive_from = before}});
  return builder.take();
}

// T = 2 a + (n-1)/n B / 2 (further destinations of the fused step) + B (operands of the reduction). Staged
// adds 2 (n-1)/n B: copy-in of the first shot and copy-out of the second.
Work work(const CostInput& in) {
  const double n = in.ranks, others = in.bytes * (n - 1) / n;
  Work w;
  w.rounds = 2;
  w.messages = 4 * (n - 1);
  w.exchanged_bytes = in.direct ? 2 * others : 3 * others + in.bytes / n;
  w.reduce_bytes = in.bytes;
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.ranks;
  w.sent_bytes = 2 * others;
  return w;
}

}  // namespace

const Algorithm kTwoShot = {.collective = Collective::kAllReduce,
                            .name = "two-shot",
                            .description = "each rank reduces its own part straight from all peers, then gathers",
                            .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005 (pairwise exchange)",
                            .rounding = "once",
                            .forwards_partial_sums = false,
                            .input_used_once = true,
                            .rank_ordered = true,
                            .computed_once = true,
                            .all_peers = true,
                            .min_ranks = 1,
                            .max_ranks = 1024,
                            .channels = 2,
                            .pipelined = false,
                            .build = build,
                            .work = work};

}  // namespace treering
