// SPDX-License-Identifier: Apache-2.0
// Recursive doubling: in round i a rank and the one whose number differs in bit i exchange all that they have summed.
//
//   0 <-> 1   2 <-> 3      then      0 <-> 2   1 <-> 3      and every rank has 0 + 1 + 2 + 3
//
// Half as many rounds as halving and doubling, for small buffers: each round carries the whole buffer. Both partners of
// a round combine the same two operands in the same order, so all ranks end with the same bits. The first partners are
// neighbours in the ring, so the last rounds are the ones between hosts. When n is no power of two, the first of each
// of the first (n - 2^k) pairs hands its input to the second before, and gets the result after.
//
// Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005, 4.5.
#include <bit>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

Schedule build_extra(const Plan& plan, uint32_t position) {
  const uint32_t partner[] = {plan.ring[position + 1]};
  ScheduleBuilder builder(plan.ring[position], plan.ranks, 1);
  builder.once({.flags = kInput | kSend, .send_to = partner});
  builder.once({.flags = kReceive | kStore | kFinal, .receive_from = partner});
  return builder.take();
}

Schedule build(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const uint32_t core = std::bit_floor(n), extra = n - core;
  const auto rounds = static_cast<uint32_t>(std::countr_zero(core));
  uint32_t position = 0;
  while (plan.ring[position] != rank) ++position;
  if (position < 2 * extra && position % 2 == 0) return build_extra(plan, position);

  const bool folds = position < 2 * extra;
  const uint32_t v = folds ? position / 2 : position - extra;
  const auto partner_of = [&](uint32_t round) {
    const uint32_t w = v ^ (1u << round);
    return w < extra ? 2 * w + 1 : w + extra;
  };
  ScheduleBuilder builder(rank, n, 1);
  const uint32_t first[] = {plan.ring[partner_of(0)]}, folded[] = {folds ? plan.ring[position - 1] : 0};
  if (folds)
    builder.once({.flags = kReceive | kReduce | kInput | kStoreScratch | kSend,
                  .receive_from = folded,
                  .send_to = first,
                  .local_position = 1});
  else
    builder.once({.flags = kInput | kSend, .send_to = first});
  for (uint32_t i = 0; i < rounds; ++i) {
    const bool last = i + 1 == rounds, sends = !last || folds;
    const uint32_t other = partner_of(i), from[] = {plan.ring[other]};
    const uint32_t to[] = {last ? folded[0] : plan.ring[partner_of(i + 1)]};
    const unsigned local = i == 0 && !folds ? kInput : kScratch;
    const unsigned result = last ? kStore | kFinal : kStoreScratch;
    builder.once({.flags = kReceive | kReduce | local | result | (sends ? unsigned{kSend} : 0u),
                  .receive_from = from,
                  .send_to = std::span<const uint32_t>(to, sends ? 1 : 0),
                  .local_position = other < position});
  }
  return builder.take();
}

// With m = 2^floor(log2 n): T = log2 m (a + B (copy + reduce)). Other n: one more round at either end.
Work work(const CostInput& in) {
  const uint32_t core = std::bit_floor(in.ranks);
  const double log_core = std::countr_zero(core);
  const bool folds = core != in.ranks;
  Work w;
  w.rounds = log_core + (folds ? 2 : 0);
  w.messages = 2 * log_core + (folds ? 2 : 0);
  w.exchanged_bytes = 2 * w.rounds * in.bytes;
  w.reduce_bytes = 2 * (log_core + folds) * in.bytes;
  w.memory_bytes = 2 * in.bytes;
  w.sent_bytes = (log_core + folds) * in.bytes;
  // The last rounds are the ones between hosts.
  if (!folds && in.hosts > 1 && std::has_single_bit(in.largest_host())) {
    w.network_rounds = std::bit_width(in.hosts - 1);
    w.network_messages = 2 * w.network_rounds;
    w.network_bytes = w.network_rounds * in.largest_host() * in.bytes;
  }
  return w;
}

}  // namespace

const Algorithm kRecursiveDoubling = {
    .collective = Collective::kAllReduce,
    .name = "recursive-doubling",
    .description = "pairs at doubling distances exchange everything: log2 n messages after one another",
    .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005",
    .rounding = "once per round (log2 n times), once in all with wide partials",
    .forwards_partial_sums = true,
    .input_used_once = false,
    .rank_ordered = false,
    .computed_once = false,
    .min_ranks = 1,
    .max_ranks = 65536,
    .channels = 1,
    .pipelined = false,
    .build = build,
    .work = work};
// An allreduce of nothing ends on no rank before all have begun.
const Algorithm kBarrierRecursiveDoubling = {.collective = Collective::kBarrier,
                                             .name = "recursive-doubling",
                                             .description = "pairs at doubling distances",
                                             .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005",
                                             .rounding = "never",
                                             .min_ranks = 1,
                                             .max_ranks = 65536,
                                             .channels = 1,
                                             .build = build,
                                             .work = work};

}  // namespace treering
