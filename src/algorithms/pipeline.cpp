// SPDX-License-Identifier: Apache-2.0
// Broadcasts and reductions that spread the work over the ranks.
//
//   chain              root -> next -> next ...          pipelined: the time of one copy for long buffers
//   binomial           root -> n/2 away -> ...           log2 n rounds of the whole buffer
//   scatter-allgather  root -> chunk j to j -> all       every rank copies; "van de Geijn"
//   scatter-gather     all -> chunk j to j -> root       the same, backwards: each rank reduces its chunk
//
// Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005;
// Barnett, Shuler, van de Geijn et al., "Interprocessor collective communication library", SHPCC 1994.
#include <algorithm>
#include <bit>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

uint32_t position_of(const Plan& plan, uint32_t rank) {
  uint32_t position = 0;
  while (plan.ring[position] != rank) ++position;
  return position;
}

Schedule build_chain(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks, chunks = shape.pipeline_chunks;
  if (n == 1) return single_rank_schedule(chunks);
  const uint32_t position = position_of(plan, rank), distance = (position + n - position_of(plan, shape.root)) % n;
  const uint32_t next[] = {plan.ring[(position + 1) % n]}, previous[] = {plan.ring[(position + n - 1) % n]};
  ScheduleBuilder builder(rank, n, chunks);
  StepSpec step = {.flags = kStore | kFinal};
  if (distance == 0) {
    step.flags |= kInput;
  } else {
    step.flags |= kReceive;
    step.receive_from = previous;
  }
  if (distance + 1 < n) {
    step.flags |= kSend;
    step.send_to = next;
  }
  builder.repeat(chunks, 1, 0, {step});
  return builder.take();
}

// In the order of the ranks from the root on; rank v's parent is v without its lowest set bit.
Schedule build_binomial(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const uint32_t v = (rank + n - shape.root) % n;
  const auto real = [&](uint32_t w) { return (w + shape.root) % n; };
  const uint32_t low = v == 0 ? std::bit_ceil(n) : v & (~v + 1);
  std::vector<uint32_t> children;  // the one with the largest subtree first
  for (uint32_t bit = low / 2; bit > 0; bit /= 2)
    if (v + bit < n) children.push_back(real(v + bit));
  const uint32_t parent[] = {real(v - (v == 0 ? 0 : low))};
  ScheduleBuilder builder(rank, n, 1);
  StepSpec step = {.flags = kStore | kFinal};
  if (v == 0) {
    step.flags |= kInput;
  } else {
    step.flags |= kReceive;
    step.receive_from = parent;
  }
  if (!children.empty()) {
    step.flags |= kSend;
    step.send_to = children;
  }
  builder.once(step);
  return builder.take();
}

Schedule build_scatter_allgather(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  std::vector<uint32_t> others;  // but the root
  for (uint32_t i = 1; i < n; ++i)
    if ((rank + i) % n != shape.root) others.push_back((rank + i) % n);
  const uint32_t root[] = {shape.root};
  ScheduleBuilder builder(rank, n, n);
  if (rank == shape.root) {
    const uint32_t after[] = {(rank + 1) % n};  // NOLINT(clang-analyzer-core.DivideZero): n > 0
    builder.repeat(n - 1, 1, 1, {{.flags = kInput | kStore | kSend | kFinal, .chunk = after[0], .send_to = after}});
    builder.once({.flags = kInput | kStore | kSend | kFinal, .chunk = rank, .send_to = others});
    return builder.take();
  }
  StepSpec own = {.flags = kReceive | kStore | kFinal, .chunk = rank, .receive_from = root};
  if (!others.empty()) {
    own.flags |= kSend;
    own.send_to = others;
  }
  builder.once(own);
  for (uint32_t i = 1; i < n; ++i) {
    const uint32_t from[] = {(rank + n - i) % n};
    builder.once({.flags = kReceive | kStore | kFinal, .chunk = from[0], .receive_from = from});
  }
  return builder.take();
}

Schedule build_scatter_gather(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  std::vector<uint32_t> others;
  for (uint32_t i = 0; i < n; ++i)
    if (i != rank) others.push_back(i);
  const uint32_t root[] = {shape.root}, after[] = {(rank + 1) % n};  // NOLINT(clang-analyzer-core.DivideZero): n > 0
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1);
  builder.repeat(n - 1, 1, 1, {{.flags = kInput | kSend, .chunk = after[0], .send_to = after}});
  StepSpec own = {
      .flags = kReceive | kReduce | kInput | kFinal, .chunk = rank, .receive_from = others, .local_position = rank};
  if (rank == shape.root) {
    own.flags |= kStore;
  } else {
    own.flags |= kSend;
    own.send_to = root;
  }
  builder.once(own);
  if (rank == shape.root)
    builder.repeat(n - 1, 1, 1, {{.flags = kReceive | kStore | kFinal, .chunk = after[0], .receive_from = after}});
  return builder.take();
}

// T = (n - 2 + K) (a + 2 B / K): K chunks follow one another down the chain.
Work chain_work(const CostInput& in) {
  const double n = in.ranks, chunks = in.pipeline_chunks, fill = (n - 2 + chunks) / chunks;
  Work w;
  w.rounds = n - 2 + chunks;
  w.messages = (n == 2 ? 1 : 2) * chunks;
  w.exchanged_bytes = fill * (in.direct ? 1 : 2) * in.bytes;
  w.memory_bytes = in.bytes;
  w.chunks = in.pipeline_chunks;
  w.sent_bytes = in.bytes;
  w.network_bytes = in.hosts > 1 ? (in.hosts - 2 + chunks) / chunks * in.bytes : 0;  // one rank of a host sends
  w.network_rounds = in.hosts > 1 ? in.hosts - 2 + chunks : 0;
  w.network_sources = 1;
  return w;
}

// T = log2 n (a + 2 B)
Work binomial_work(const CostInput& in) {
  const double rounds = std::bit_width(in.ranks - 1);
  Work w;
  w.rounds = rounds;
  w.messages = rounds;
  w.exchanged_bytes = rounds * (in.direct ? 1 : 2) * in.bytes;
  w.sent_bytes = rounds * in.bytes;
  w.network_bytes = in.hosts > 1 ? w.sent_bytes : 0;
  w.memory_bytes = in.bytes;
  return w;
}

// T = 2 a + B (root, into slots) and B/n + B (others: into a slot, out of all)
Work scatter_allgather_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = 2;
  w.messages = std::max(n - 1 + n - 2, n - 1 + n - 2);
  w.exchanged_bytes = (in.direct ? 1.0 : 1.0 + 2 / n) * in.bytes;
  w.sent_bytes = 2 * (n - 1) / n * in.bytes;
  w.memory_bytes = in.bytes;
  w.chunks = in.ranks;
  return w;
}

// T = 2 a + 3 (n-1)/n B + B (operands): the root also takes the other chunks.
Work scatter_gather_work(const CostInput& in) {
  const double n = in.ranks, others = in.bytes * (n - 1) / n;
  Work w;
  w.rounds = 2;
  w.messages = 3 * (n - 1);
  w.exchanged_bytes = (in.direct ? 1 : 3) * others;
  w.sent_bytes = in.bytes;
  w.reduce_bytes = in.bytes;
  w.memory_bytes = 1.5 * in.bytes;
  w.chunks = in.ranks;
  return w;
}

}  // namespace

const Algorithm kBroadcastChain = {.collective = Collective::kBroadcast,
                                   .name = "chain",
                                   .description = "chunks follow one another along the ring",
                                   .source = "Barnett, Shuler, van de Geijn et al., SHPCC 1994",
                                   .rounding = "never",
                                   .input_used_once = true,
                                   .rank_ordered = true,
                                   .computed_once = true,
                                   .min_ranks = 1,
                                   .max_ranks = 65536,
                                   .channels = 1,
                                   .pipelined = true,
                                   .build = build_chain,
                                   .work = chain_work};
const Algorithm kBroadcastBinomial = {.collective = Collective::kBroadcast,
                                      .name = "binomial",
                                      .description = "the ranks that have it double in every round",
                                      .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005",
                                      .rounding = "never",
                                      .input_used_once = true,
                                      .rank_ordered = true,
                                      .computed_once = true,
                                      .min_ranks = 1,
                                      .max_ranks = 65536,
                                      .channels = 1,
                                      .build = build_binomial,
                                      .work = binomial_work};
const Algorithm kBroadcastScatterAllgather = {.collective = Collective::kBroadcast,
                                              .name = "scatter-allgather",
                                              .description = "the root deals out chunks, which all then share",
                                              .source = "Barnett, Shuler, van de Geijn et al., SHPCC 1994",
                                              .rounding = "never",
                                              .input_used_once = true,
                                              .rank_ordered = true,
                                              .computed_once = true,
                                              .all_peers = true,
                                              .min_ranks = 1,
                                              .max_ranks = 1024,
                                              .channels = 2,
                                              .build = build_scatter_allgather,
                                              .work = scatter_allgather_work};
const Algorithm kReduceScatterGather = {.collective = Collective::kReduce,
                                        .name = "scatter-gather",
                                        .description = "each rank reduces its own part, the root gathers them",
                                        .source = "Thakur, Rabenseifner and Gropp, IJHPCA 2005",
                                        .rounding = "once",
                                        .input_used_once = true,
                                        .rank_ordered = true,
                                        .computed_once = true,
                                        .all_peers = true,
                                        .min_ranks = 1,
                                        .max_ranks = 1024,
                                        .channels = 2,
                                        .build = build_scatter_gather,
                                        .work = scatter_gather_work};

}  // namespace treering
