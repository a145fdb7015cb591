// SPDX-License-Identifier: Apache-2.0
// Ring allreduce: each chunk travels once around the ring to be summed and once more to be handed out. The first turn
// alone is the ring reduce-scatter, the second the ring allgather, there with the blocks of the ranks as chunks.
//
//   position p, chunk c:   0 -> 1 -> 2 -> 3 -> 0      first turn: partial sums, second turn: results
//
// All ranks step at the same time and every step both frees a FIFO and fills the next, so the circle needs
// one spare message: FIFO depth 2.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2),
// 2009.
#include <utility>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

Schedule build(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  uint32_t position = 0;
  while (plan.ring[position] != rank) ++position;
  uint32_t next = plan.ring[position + 1 == n ? 0 : position + 1];
  uint32_t previous = plan.ring[position == 0 ? n - 1 : position - 1];
  // Odd channels turn the other way round, so that two channels use both directions of every link.
  if (shape.channel % 2 == 1) {
    std::swap(next, previous);
    position = n - 1 - position;
  }
  const auto chunk = [&](uint32_t back) { return (position + 2 * n - back) % n; };
  const uint32_t from[] = {previous};
  const uint32_t to[] = {next};

  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/2);
  // First turn: chunk `position` starts here; every later one arrives with the sum of the ranks behind us.
  builder.once({.flags = kInput | kSend, .chunk = chunk(0), .send_to = to});
  builder.repeat(n - 2, -1, 0,
                 {{.flags = kReceive | kReduce | kInput | kSend,
                   .chunk = chunk(1),
                   .receive_from = from,
                   .send_to = to,
                   .local_position = 1}});
  // The chunk that started at the next position has met every rank now.
  builder.once({.flags = kReceive | kReduce | kInput | kStore | kSend | kFinal,
                .chunk = chunk(n - 1),
                .receive_from = from,
                .send_to = to,
                .local_position = 1});
  // Second turn.
  builder.repeat(
      n - 2, -1, 0,
      {{.flags = kReceive | kStore | kSend | kFinal, .chunk = chunk(n), .receive_from = from, .send_to = to}});
  builder.once({.flags = kReceive | kStore | kFinal, .chunk = chunk(2 * n - 2), .receive_from = from});
  return builder.take();
}

// T = 2(n-1) a + 2(n-1)/n B (copy + reduce): of n chunks of B/n bytes, n-1 are reduced from two operands, n-1
// are copied out. Staged adds the copy of the first chunk into its
// slot and a second destination of the n-2 forwarded ones.
Work work(const CostInput& in) {
  const double n = in.ranks, chunk = in.bytes / n;
  Work w;
  w.rounds = 2 * (n - 1);
  w.messages = 4 * (n - 1);
  w.exchanged_bytes = (in.direct ? 3 : 4) * chunk * (n - 1);
  w.reduce_bytes = 2 * chunk * (n - 1);
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.ranks;
  w.sent_bytes = 2 * chunk * (n - 1);
  w.network_sources = 1;
  w.network_bytes = w.sent_bytes;  // one rank of a host sends to another host
  w.network_rounds = in.hosts > 1 ? w.rounds * in.hosts / n : 0;
  w.network_messages = w.messages / 2;  // it sends to another host or receives from one
  return w;
}

// The ranks before and after this one on the ring, and the rank `back` places before it.
struct Place {
  const Plan& plan;
  uint32_t position = 0;
  Place(const Plan& p, uint32_t rank) : plan(p) {
    while (plan.ring[position] != rank) ++position;
  }
  uint32_t back(uint32_t places) const { return plan.ring[(position + plan.ranks - places % plan.ranks) % plan.ranks]; }
};

Schedule build_allgather(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const Place place(plan, rank);
  const uint32_t from[] = {place.back(1)}, to[] = {place.back(n - 1)};
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/2, /*parts=*/n);
  builder.once({.flags = kInput | kStore | kSend | kFinal, .chunk = rank, .send_to = to});
  for (uint32_t k = 1; k + 1 < n; ++k)
    builder.once(
        {.flags = kReceive | kStore | kSend | kFinal, .chunk = place.back(k), .receive_from = from, .send_to = to});
  builder.once({.flags = kReceive | kStore | kFinal, .chunk = place.back(n - 1), .receive_from = from});
  return builder.take();
}

Schedule build_reduce_scatter(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const Place place(plan, rank);
  const uint32_t from[] = {place.back(1)}, to[] = {place.back(n - 1)};
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/2, /*parts=*/n);
  builder.once({.flags = kInput | kSend, .chunk = place.back(1), .send_to = to});
  for (uint32_t k = 2; k < n; ++k)
    builder.once({.flags = kReceive | kReduce | kInput | kSend,
                  .chunk = place.back(k),
                  .receive_from = from,
                  .send_to = to,
                  .local_position = 1});
  builder.once({.flags = kReceive | kReduce | kInput | kStore | kFinal,
                .chunk = rank,
                .receive_from = from,
                .local_position = 1});
  return builder.take();
}

// T = (n-1) a + 2 (n-1)/n B, B the bytes of all blocks
Work allgather_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = n - 1;
  w.messages = 2 * (n - 1);
  w.exchanged_bytes = in.copies() * (n - 1) / n * in.bytes;
  w.memory_bytes = in.bytes;
  w.chunks = in.ranks;
  w.sent_bytes = (n - 1) / n * in.bytes;
  w.network_sources = 1;
  w.network_bytes = w.sent_bytes;
  w.network_rounds = in.hosts > 1 ? w.rounds * in.hosts / n : 0;
  w.network_messages = w.messages / 2;  // it sends to another host or receives from one
  return w;
}

// T = (n-1) a + 2 (n-1)/n B (copies) + 2 (n-1)/n B (operands)
Work reduce_scatter_work(const CostInput& in) {
  const double n = in.ranks, most = (n - 1) / n * in.bytes;
  Work w;
  w.rounds = n - 1;
  w.messages = 2 * (n - 1);
  w.exchanged_bytes = 2 * most;
  w.reduce_bytes = 2 * most;
  w.memory_bytes = in.bytes;
  w.chunks = in.ranks;
  w.sent_bytes = most;
  w.network_sources = 1;
  w.network_bytes = w.sent_bytes;
  w.network_rounds = in.hosts > 1 ? w.rounds * in.hosts / n : 0;
  w.network_messages = w.messages / 2;  // it sends to another host or receives from one
  return w;
}

}  // namespace

const Algorithm kAllGatherRing = {.collective = Collective::kAllGather,
                                  .name = "ring",
                                  .description = "blocks travel around a ring",
                                  .source = "Patarasuk and Yuan, JPDC 2009",
                                  .rounding = "never",
                                  .input_used_once = true,
                                  .rank_ordered = true,
                                  .computed_once = true,
                                  .fetch_bytes = 4 * kMinFetchedBytes,
                                  .min_ranks = 1,
                                  .max_ranks = 65536,
                                  .channels = 1,
                                  .build = build_allgather,
                                  .work = allgather_work};
const Algorithm kReduceScatterRing = {.collective = Collective::kReduceScatter,
                                      .name = "ring",
                                      .description = "partial sums travel around a ring",
                                      .source = "Patarasuk and Yuan, JPDC 2009",
                                      .rounding = "once per hop (n-1 times), once in all with wide partials",
                                      .forwards_partial_sums = true,
                                      .input_used_once = true,
                                      .computed_once = true,
                                      .min_ranks = 1,
                                      .max_ranks = 65536,
                                      .channels = 1,
                                      .build = build_reduce_scatter,
                                      .work = reduce_scatter_work};
const Algorithm kRing = {.collective = Collective::kAllReduce,
                         .name = "ring",
                         .description = "partial sums, then results, travel around a ring; bandwidth-optimal",
                         .source = "Patarasuk and Yuan, JPDC 2009",
                         .rounding = "once per hop (n-1 times), once in all with wide partials",
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
