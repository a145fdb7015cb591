// Ring allreduce: each chunk travels once around the ring to be summed and once more to be handed out.
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
  builder.repeat(n - 2, -1, 0,
                 {{.flags = kReceive | kStore | kSend | kFinal,
                   .chunk = chunk(n),
                   .receive_from = from,
                   .send_to = to}});
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
  return w;
}

}  // namespace

const Algorithm kRing = {.name = "ring",
                         .description = "partial sums, then results, travel around a ring; bandwidth-optimal",
                         .source = "Patarasuk and Yuan, JPDC 2009",
                         .rounding = "once per hop (n-1 times), once in all with wide partials",
                         .forwards_partial_sums = true,
                         .input_used_once = true,
                         .min_ranks = 1,
                         .max_ranks = 65536,
                         .channels = 1,
                         .pipelined = false,
                         .build = build,
                         .work = work};

}  // namespace treering
