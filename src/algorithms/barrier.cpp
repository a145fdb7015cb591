// SPDX-License-Identifier: Apache-2.0
// Barriers: an allreduce of nothing ends on no rank before all have begun. The rows reuse its schedules.
#include "algorithms/algorithm.h"

namespace treering {
namespace {

Schedule build_one_shot(const Plan& plan, uint32_t rank, const Shape& shape) {
  return kOneShot.build(plan, rank, shape);
}
Schedule build_tree(const Plan& plan, uint32_t rank, const Shape& shape) { return kTree.build(plan, rank, shape); }
Work one_shot_work(const CostInput& in) { return kOneShot.work(in); }
Work tree_work(const CostInput& in) {
  Work w = kTree.work(in);
  w.messages /= 2;  // one tree
  return w;
}

}  // namespace

const Algorithm kBarrierOneShot = {
    .collective = Collective::kBarrier,
    .name = "one-shot",
    .description = "everyone tells everyone",
    .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005 (recursive doubling, radix n)",
    .rounding = "never",
    .input_used_once = false,
    .rank_ordered = true,
    .all_peers = true,
    .mailbox = true,
    .min_ranks = 1,
    .max_ranks = 1024,
    .channels = 1,
    .build = build_one_shot,
    .work = one_shot_work};
const Algorithm kBarrierTree = {.collective = Collective::kBarrier,
                                .name = "tree",
                                .description = "up a binary tree and down again",
                                .source = "Sanders, Speck and Traeff, Parallel Computing 2009",
                                .rounding = "never",
                                .input_used_once = true,
                                .computed_once = true,
                                .min_ranks = 1,
                                .max_ranks = 65536,
                                .channels = 1,
                                .build = build_tree,
                                .work = tree_work};

}  // namespace treering
