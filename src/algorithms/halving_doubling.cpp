// SPDX-License-Identifier: Apache-2.0
// Recursive halving and doubling: in round i a rank exchanges with the one whose number differs in bit i.
//
//   halving   v sends the half of its chunks that the partner keeps, reduces the half that it keeps itself
//   doubling  the same exchanges backwards, with results: the range of known chunks doubles
//
//   chunks of 0:  [0 1 2 3]  ->  [0 1]  ->  [0]   then   [0]  ->  [0 1]  ->  [0 1 2 3]
//
// The first, largest exchange is with the nearest rank. Partial sums live in the scratch. When n is no power
// of two, the first of each of the first (n - 2^k) pairs hands its input to the second before, and gets the
// result after; the result rides along with the last doubling round, so it costs no extra step.
//
// Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
#include <bit>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

struct Range {
  uint32_t first, length;
};

// The part of `range` that virtual rank v keeps in round i, and the part that its partner keeps.
Range kept(Range range, uint32_t v, uint32_t i) {
  const uint32_t half = range.length / 2;
  return {range.first + ((v >> i) & 1) * half, half};
}
Range given(Range range, uint32_t v, uint32_t i) { return kept(range, v ^ (1u << i), i); }

Schedule build_extra(const Plan& plan, uint32_t position, uint32_t chunks) {
  const uint32_t partner[] = {plan.ring[position + 1]};
  const uint32_t half = chunks / 2, v = (position + 1) / 2;
  ScheduleBuilder builder(plan.ring[position], plan.ranks, chunks);
  builder.repeat(2, static_cast<int32_t>(half), 0, {{.flags = kInput | kSend, .span = half, .send_to = partner}});
  const Range all = {0, chunks};
  for (Range part : {kept(all, v, 0), given(all, v, 0)})
    builder.once({.flags = kReceive | kStore | kFinal, .chunk = part.first, .span = half, .receive_from = partner});
  return builder.take();
}

Schedule build(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const uint32_t core = std::bit_floor(n), extra = n - core;
  const auto rounds = static_cast<uint32_t>(std::countr_zero(core));
  uint32_t position = 0;  // in the ring, so that most bytes stay near: the first partners are neighbours
  while (plan.ring[position] != rank) ++position;
  if (position < 2 * extra && position % 2 == 0) return build_extra(plan, position, core);

  const bool folds = position < 2 * extra;
  const uint32_t v = folds ? position / 2 : position - extra;
  const auto position_of = [&](uint32_t w) { return w < extra ? 2 * w + 1 : w + extra; };
  ScheduleBuilder builder(rank, n, core);
  const uint32_t folded[] = {folds ? plan.ring[position - 1] : 0};
  if (folds)
    builder.repeat(2, static_cast<int32_t>(core / 2), 0,
                   {{.flags = kReceive | kReduce | kInput | kStoreScratch,
                     .span = core / 2,
                     .receive_from = folded,
                     .local_position = 1}});

  std::vector<Range> ranges = {{0, core}};  // what is ours before round i
  for (uint32_t i = 0; i < rounds; ++i) {
    const unsigned local = i == 0 && !folds ? kInput : kScratch;
    const unsigned result = i + 1 == rounds ? kStore | kFinal : kStoreScratch;
    const uint32_t other = position_of(v ^ (1u << i)), partner[] = {plan.ring[other]};
    const Range give = given(ranges[i], v, i), keep = kept(ranges[i], v, i);
    builder.once({.flags = local | kSend, .chunk = give.first, .span = give.length, .send_to = partner});
    builder.once({.flags = kReceive | kReduce | local | result,
                  .chunk = keep.first,
                  .span = keep.length,
                  .receive_from = partner,
                  .local_position = other < position});
    ranges.push_back(keep);
  }
  for (uint32_t i = rounds; i-- > 0;) {
    const Range own = ranges[i + 1], other = given(ranges[i], v, i);
    const bool forward = folds && i == 0;  // to the extra rank as well
    const uint32_t partner[] = {plan.ring[position_of(v ^ (1u << i))]};
    const uint32_t both[] = {partner[0], folded[0]};
    builder.once({.flags = kOutput | kSend | kFinal,
                  .chunk = own.first,
                  .span = own.length,
                  .send_to = std::span<const uint32_t>(forward ? both : partner, forward ? 2 : 1)});
    builder.once({.flags = kReceive | kStore | kFinal | (forward ? unsigned{kSend} : 0u),
                  .chunk = other.first,
                  .span = other.length,
                  .receive_from = partner,
                  .send_to = std::span<const uint32_t>(folded, forward ? 1 : 0)});
  }
  return builder.take();
}

// With m = 2^floor(log2 n): T = 2 log2 m a + (m-1)/m B (copy + reduce). Halving reduces (m-1)/m B from two
// operands, doubling copies as much out; staged adds the copies into the slots. Other n: one more round at
// either end and the whole buffer once more each way.
Work work(const CostInput& in) {
  const uint32_t core = std::bit_floor(in.ranks);
  const double log_core = std::countr_zero(core), most = in.bytes * (core - 1) / core;
  const bool folds = core != in.ranks;
  Work w;
  w.rounds = 2 * log_core + (folds ? 2 : 0);
  w.messages = 4 * log_core + (folds ? 4 : 0);
  w.exchanged_bytes = (in.direct ? 3 : 4) * (most + (folds ? in.bytes : 0));
  w.reduce_bytes = 2 * most + (folds ? 2 * in.bytes : 0);
  w.memory_bytes = 2 * in.bytes;
  w.chunks = core;
  w.sent_bytes = 2 * most + (folds ? in.bytes : 0);
  // The last halvings, of the least bytes, are the ones between hosts: together as much as a ring of hosts.
  if (!folds && std::has_single_bit(in.largest_host())) w.network_bytes = 2.0 * (in.hosts - 1) / in.hosts * in.bytes;
  w.max_span = core > 1 ? core / 2 : 1;
  return w;
}

}  // namespace

const Algorithm kHalvingDoubling = {.collective = Collective::kAllReduce,
                                    .name = "halving-doubling",
                                    .description = "recursive halving, then doubling: few messages, all bandwidth",
                                    .source = "Rabenseifner, ICCS 2004",
                                    .rounding = "once per round (log2 n times), once in all with wide partials",
                                    .forwards_partial_sums = true,
                                    .input_used_once = true,
                                    .rank_ordered = false,
                                    .computed_once = true,
                                    .min_ranks = 1,
                                    .max_ranks = 65536,
                                    .channels = 1,
                                    .pipelined = false,
                                    .build = build,
                                    .work = work};

}  // namespace treering
