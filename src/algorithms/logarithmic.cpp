// SPDX-License-Identifier: Apache-2.0
// Collectives of n blocks in log2 n rounds, for any n: fewer messages, more bytes or one more copy of each.
//
//   allgather       round k: to rank - 2^k all blocks that are here (own first): 1, 2, 4, ...
//   reduce-scatter  the same backwards in time, with partial sums: ..., 4, 2, 1
//   alltoall        round k: to rank + 2^k the blocks whose way still to go has bit k
//
// Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport
// message-passing systems", IEEE TPDS 8(11), 1997.
#include <algorithm>
#include <bit>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

// Blocks first, first + 1, ... modulo n.
std::vector<uint32_t> blocks_from(uint32_t first, uint32_t count, uint32_t n) {
  std::vector<uint32_t> result;
  for (uint32_t i = 0; i < count; ++i) result.push_back((first + i) % n);
  return result;
}

Schedule build_allgather(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  for (uint32_t distance = 1; distance < n; distance *= 2) {
    const uint32_t count = std::min(distance, n - distance);
    const uint32_t to[] = {(rank + n - distance) % n}, from[] = {(rank + distance) % n};
    const std::vector<uint32_t> here = blocks_from(rank, count, n), there = blocks_from(from[0], count, n);
    const unsigned source = distance == 1 ? kInput | kStore : kOutput;
    builder.once({.flags = source | kSend | kFinal, .send_to = to, .chunk_list = here});
    builder.once({.flags = kReceive | kStore | kFinal, .receive_from = from, .chunk_list = there});
  }
  return builder.take();
}

Schedule build_reduce_scatter(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  builder.once({.flags = kInput | kStoreScratch, .chunk = 0, .span = n});
  for (uint32_t distance = std::bit_floor(n - 1); distance > 0; distance /= 2) {
    const uint32_t count = std::min(distance, n - distance);
    const uint32_t to[] = {(rank + distance) % n}, from[] = {(rank + n - distance) % n};
    const std::vector<uint32_t> there = blocks_from(to[0], count, n), here = blocks_from(rank, count, n);
    builder.once({.flags = kScratch | kSend, .send_to = to, .chunk_list = there});
    const unsigned result = distance == 1 ? kStore | kFinal : kStoreScratch;
    builder.once({.flags = kReceive | kReduce | kScratch | result,
                  .receive_from = from,
                  .local_position = from[0] < rank,
                  .chunk_list = here});
  }
  return builder.take();
}

// A block from s to d is, before round k, on s + (the bits below k of d - s). Bits k and above of d - s are the way
// that it still has to go.
Schedule build_alltoall(const Plan& plan, uint32_t rank, const Shape&) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  ScheduleBuilder builder(rank, n, n * n, /*fifo_depth=*/1, /*parts=*/n * n);
  std::vector<uint32_t> own;
  for (uint32_t way = 1; way < n; ++way) own.push_back(rank * n + (rank + way) % n);
  builder.once({.flags = kInput | kStoreScratch, .chunk_list = own});
  builder.once({.flags = kInput | kStore | kFinal, .chunk = rank * n + rank});
  for (uint32_t bit = 1; bit < n; bit *= 2) {
    const uint32_t to[] = {(rank + bit) % n}, from[] = {(rank + n - bit) % n};
    std::vector<uint32_t> leave, stay, arrive;
    for (uint32_t way = 1; way < n; ++way) {
      if ((way & bit) == 0) continue;
      const uint32_t source = (rank + n - way % bit) % n;  // of a block with this way that is here now
      leave.push_back(source * n + (source + way) % n);
      const uint32_t other = (from[0] + n - way % bit) % n;
      (way < 2 * bit ? arrive : stay).push_back(other * n + (other + way) % n);
    }
    // The sender's order is by way; those that arrive for good come first, as their ways are the smaller.
    std::vector<uint32_t> first(leave.begin(), leave.begin() + static_cast<std::ptrdiff_t>(arrive.size()));
    std::vector<uint32_t> rest(leave.begin() + static_cast<std::ptrdiff_t>(arrive.size()), leave.end());
    builder.once({.flags = kScratch | kSend | kFinal, .send_to = to, .chunk_list = first});
    builder.once({.flags = kReceive | kStore | kFinal, .receive_from = from, .chunk_list = arrive});
    if (!rest.empty()) builder.once({.flags = kScratch | kSend, .send_to = to, .chunk_list = rest});
    if (!stay.empty()) builder.once({.flags = kReceive | kStoreScratch, .receive_from = from, .chunk_list = stay});
  }
  return builder.take();
}

// Subtrees of a binomial tree, in the order of the ranks from the root on: v has blocks v .. v + subtree - 1.
struct Binomial {
  uint32_t n, v, root;
  Binomial(uint32_t ranks, uint32_t rank, uint32_t root_rank)
      : n(ranks), v((rank + ranks - root_rank) % ranks), root(root_rank) {}
  uint32_t real(uint32_t w) const { return (w + root) % n; }
  uint32_t low() const { return v == 0 ? std::bit_ceil(n) : v & (~v + 1); }
  std::vector<uint32_t> blocks(uint32_t w, uint32_t size) const {
    return blocks_from(real(w), std::min(size, n - w), n);
  }
};

Schedule build_gather(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const Binomial tree(n, rank, shape.root);
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  const bool at_root = tree.v == 0, leaf = tree.low() == 1 || tree.v + 1 >= n;
  const uint32_t parent[] = {tree.real(tree.v - (at_root ? 0 : tree.low()))};
  if (!at_root && leaf) {
    builder.once({.flags = kInput | kSend | (parent[0] == shape.root ? unsigned{kFinal} : 0u),
                  .send_to = parent,
                  .chunk_list = tree.blocks(tree.v, 1)});
    return builder.take();
  }
  builder.once({.flags = kInput | (at_root ? unsigned{kStore | kFinal} : unsigned{kStoreScratch}), .chunk = rank});
  for (uint32_t bit = 1; bit < tree.low() && tree.v + bit < n; bit *= 2) {
    const uint32_t child[] = {tree.real(tree.v + bit)};
    builder.once({.flags = kReceive | (at_root ? kStore | kFinal : unsigned{kStoreScratch}),
                  .receive_from = child,
                  .chunk_list = tree.blocks(tree.v + bit, bit)});
  }
  if (!at_root)
    builder.once({.flags = kScratch | kSend | (parent[0] == shape.root ? unsigned{kFinal} : 0u),
                  .send_to = parent,
                  .chunk_list = tree.blocks(tree.v, tree.low())});
  return builder.take();
}

Schedule build_scatter(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks;
  if (n == 1) return single_rank_schedule();
  const Binomial tree(n, rank, shape.root);
  ScheduleBuilder builder(rank, n, n, /*fifo_depth=*/1, /*parts=*/n);
  const bool at_root = tree.v == 0, leaf = !at_root && (tree.low() == 1 || tree.v + 1 >= n);
  const uint32_t parent[] = {tree.real(tree.v - (at_root ? 0 : tree.low()))};
  if (leaf) {
    builder.once({.flags = kReceive | kStore | kFinal, .receive_from = parent, .chunk_list = tree.blocks(tree.v, 1)});
    return builder.take();
  }
  if (!at_root)
    builder.once(
        {.flags = kReceive | kStoreScratch, .receive_from = parent, .chunk_list = tree.blocks(tree.v, tree.low())});
  const unsigned local = at_root ? kInput : kScratch;
  for (uint32_t bit = tree.low() / 2; bit > 0; bit /= 2) {
    if (tree.v + bit >= n) continue;
    const uint32_t child[] = {tree.real(tree.v + bit)};
    // A leaf stores what it gets; an inner rank keeps it to pass on.
    const bool to_leaf = bit == 1 || tree.v + bit + 1 >= n;
    builder.once({.flags = local | kSend | (to_leaf ? unsigned{kFinal} : 0u),
                  .send_to = child,
                  .chunk_list = tree.blocks(tree.v + bit, bit)});
  }
  builder.once({.flags = local | kStore | kFinal, .chunk = rank});
  return builder.take();
}

double rounds_of(uint32_t ranks) { return std::bit_width(ranks - 1); }

// T = log2 n a + 2 (n-1)/n B: the blocks double.
Work allgather_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = rounds_of(in.ranks);
  w.messages = 2 * w.rounds;
  w.exchanged_bytes = (in.direct ? 1 : 2) * (n - 1) / n * in.bytes;
  w.sent_bytes = (n - 1) / n * in.bytes;
  w.memory_bytes = in.bytes;
  w.chunks = in.ranks;
  w.max_span = in.ranks == 1 ? 1 : std::max(std::bit_floor(in.ranks - 1), 1u);
  return w;
}

// T = log2 n a + B + 3 (n-1)/n B: the first copy, then halves with reductions.
Work reduce_scatter_work(const CostInput& in) {
  const double n = in.ranks, most = (n - 1) / n * in.bytes;
  Work w;
  w.rounds = rounds_of(in.ranks);
  w.messages = 2 * w.rounds;
  w.exchanged_bytes = 2 * most + in.bytes;
  w.sent_bytes = most;
  w.reduce_bytes = 2 * most;
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.ranks;
  w.max_span = in.ranks;
  return w;
}

// T = log2 n (2 a + B): half of all blocks move in every round, in two messages.
Work alltoall_work(const CostInput& in) {
  Work w;
  w.rounds = rounds_of(in.ranks);
  w.messages = 4 * w.rounds;
  w.exchanged_bytes = w.rounds * in.bytes;
  w.sent_bytes = w.rounds * in.bytes / 2;
  w.memory_bytes = (2 + w.rounds) * in.bytes;
  w.chunks = in.ranks * in.ranks;
  w.max_span = std::max(in.ranks - 1, 1u);
  return w;
}

// T = log2 n a + 2 (n-1)/n B on the way to or from the root, each block up to log2 n times
Work rooted_work(const CostInput& in) {
  const double n = in.ranks;
  Work w;
  w.rounds = rounds_of(in.ranks);
  w.messages = w.rounds;
  w.exchanged_bytes = 1.5 * (n - 1) / n * in.bytes;
  w.sent_bytes = (n - 1) / n * in.bytes;
  w.network_bytes = in.hosts > 1 ? w.sent_bytes : 0;
  w.memory_bytes = in.bytes;
  w.chunks = in.ranks;
  w.max_span = in.ranks == 1 ? 1 : std::max(std::bit_ceil(in.ranks) / 2, 1u);
  return w;
}

constexpr Algorithm row(Collective collective, const char* name, const char* description, const char* rounding,
                        bool rank_ordered, bool equal_parts_only, bool input_used_once,
                        Schedule (*build)(const Plan&, uint32_t, const Shape&), Work (*work)(const CostInput&)) {
  Algorithm row{};
  row.collective = collective;
  row.name = name;
  row.description = description;
  row.source = "Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 1997";
  row.rounding = rounding;
  row.forwards_partial_sums = collective == Collective::kReduceScatter;
  row.input_used_once = input_used_once;
  row.rank_ordered = rank_ordered;
  row.computed_once = true;
  row.equal_parts_only = equal_parts_only;
  row.min_ranks = 1;
  row.max_ranks = collective == Collective::kAllToAll ? 256 : 65536;
  row.channels = 1;
  row.build = build;
  row.work = work;
  return row;
}

}  // namespace

const Algorithm kAllGatherBruck =
    row(Collective::kAllGather, "bruck", "the blocks that a rank has double in every round", "never", true, false, true,
        build_allgather, allgather_work);
const Algorithm kReduceScatterHalving =
    row(Collective::kReduceScatter, "halving", "partial sums of ever fewer blocks, in log2 n rounds",
        "once per round (log2 n times), once in all with wide partials", false, false, true, build_reduce_scatter,
        reduce_scatter_work);
const Algorithm kAllToAllBruck = row(Collective::kAllToAll, "bruck", "blocks travel by the bits of their way", "never",
                                     true, true, true, build_alltoall, alltoall_work);
const Algorithm kGatherBinomial = row(Collective::kGather, "binomial", "blocks are collected up a binomial tree",
                                      "never", true, false, true, build_gather, rooted_work);
const Algorithm kScatterBinomial = row(Collective::kScatter, "binomial", "blocks are dealt out down a binomial tree",
                                       "never", true, false, true, build_scatter, rooted_work);

}  // namespace treering
