// SPDX-License-Identifier: Apache-2.0
// Double binary tree: sums flow up a binary tree, results flow down the same tree, pipelined over chunks.
//
//   tree 0 (even channels), n = 8       tree 1 (odd channels): positions mirrored (n even) or shifted by
//                                       one (n odd), so that an inner rank of one tree is a leaf of the other
//          0
//           `---4---.
//            .-'     `-.
//            2         6          even positions are inner nodes, odd positions leaves
//           / \       / \         (position: place in the plan's ring)
//          1   3     5   7
//
// A rank at distance d from the root does up(chunk k) at time k + D - d and down(chunk k) at time k + D + d,
// so its program runs down(k - 2 d), up(k) side by side: a prologue of ups, a body of both, an epilogue of
// downs. At FIFO depth 1 the lag 2 d is also the largest that cannot deadlock, and only with down before up.
//
// Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
// Computing 35(12), 2009; NCCL 2.4 (tree shape).
#include <algorithm>
#include <bit>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/binary_tree.h"
#include "algorithms/builder.h"

namespace treering {
namespace {

// Position in the plan's ring <-> node of the tree of this channel.
uint32_t node_of(uint32_t position, uint32_t n, bool second) {
  if (!second) return position;
  return n % 2 == 0 ? n - 1 - position : (position + n - 1) % n;
}
uint32_t position_of(uint32_t node, uint32_t n, bool second) {
  if (!second) return node;
  return n % 2 == 0 ? n - 1 - node : (node + 1) % n;
}

}  // namespace

void tree_neighbours(const Plan& plan, uint32_t rank, bool second, int* parent, int children[2]) {
  const uint32_t n = plan.ranks;
  const auto position = static_cast<uint32_t>(std::find(plan.ring.begin(), plan.ring.end(), rank) - plan.ring.begin());
  const BinaryTree tree{n};
  const uint32_t node = node_of(position, n, second);
  const auto rank_of = [&](uint32_t x) { return static_cast<int>(plan.ring[position_of(x, n, second)]); };
  *parent = node == 0 ? -1 : rank_of(tree.parent(node));
  children[0] = children[1] = -1;
  size_t count = 0;
  for (uint32_t child : tree.children(node)) children[count++] = rank_of(child);
}

namespace {

// One direction alone, for reduce and broadcast: the root is node 0 of both trees, the second is the mirror image of
// the first among the others.
struct RootedNode {
  uint32_t node;
  bool at_root;
  uint32_t parent;                 // rank
  std::vector<uint32_t> children;  // ranks
  uint32_t left = 0;               // children whose sums come before ours

  RootedNode(const Plan& plan, uint32_t rank, const Shape& shape) {
    const uint32_t n = plan.ranks;
    uint32_t position = 0, start = 0;
    while (plan.ring[position] != rank) ++position;
    while (plan.ring[start] != shape.root) ++start;
    const bool second = shape.channel % 2 == 1;
    const auto node_at = [&](uint32_t distance) { return second ? (n - distance) % n : distance; };
    const auto rank_of = [&](uint32_t x) { return plan.ring[(start + node_at(x)) % n]; };
    const BinaryTree tree{n};
    node = node_at((position + n - start) % n);
    at_root = node == 0;
    parent = at_root ? rank : rank_of(tree.parent(node));
    for (uint32_t child : tree.children(node)) {
      children.push_back(rank_of(child));
      left += child < node;
    }
  }
};

Schedule build_broadcast(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks, chunks = shape.pipeline_chunks;
  if (n == 1) return single_rank_schedule(chunks);
  const RootedNode node(plan, rank, shape);
  const uint32_t parent[] = {node.parent};
  ScheduleBuilder builder(rank, n, chunks);
  StepSpec step = {.flags = kStore | kFinal | (node.at_root ? unsigned{kInput} : unsigned{kReceive})};
  if (!node.at_root) step.receive_from = parent;
  if (!node.children.empty()) {
    step.flags |= kSend;
    step.send_to = node.children;
  }
  builder.repeat(chunks, 1, 0, {step});
  return builder.take();
}

Schedule build_reduce(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks, chunks = shape.pipeline_chunks;
  if (n == 1) return single_rank_schedule(chunks);
  const RootedNode node(plan, rank, shape);
  const uint32_t parent[] = {node.parent};
  ScheduleBuilder builder(rank, n, chunks);
  StepSpec step = {.flags = kInput};
  if (!node.children.empty()) {
    step.flags |= kReceive | kReduce;
    step.receive_from = node.children;
    step.local_position = node.left;
  }
  if (node.at_root) {
    step.flags |= kStore | kFinal;
  } else {
    step.flags |= kSend;
    step.send_to = parent;
  }
  builder.repeat(chunks, 1, 0, {step});
  return builder.take();
}

Schedule build(const Plan& plan, uint32_t rank, const Shape& shape) {
  const uint32_t n = plan.ranks, chunks = shape.pipeline_chunks;
  if (n == 1) return single_rank_schedule(chunks);
  const bool second = shape.channel % 2 == 1;
  const BinaryTree tree{n};
  uint32_t position = 0;
  while (plan.ring[position] != rank) ++position;
  const uint32_t node = node_of(position, n, second);
  const auto rank_of = [&](uint32_t x) { return plan.ring[position_of(x, n, second)]; };
  std::vector<uint32_t> children;
  uint32_t left = 0;  // children whose sums come before ours
  for (uint32_t child : tree.children(node)) {
    children.push_back(rank_of(child));
    left += child < node;
  }

  ScheduleBuilder builder(rank, n, chunks);
  StepSpec up = {.flags = kInput | kSend};
  if (!children.empty())
    up = {.flags = kReceive | kReduce | kInput | kSend, .receive_from = children, .local_position = left};
  if (node == 0) {
    up.flags |= kStore | kFinal;
    up.send_to = children;
    builder.repeat(chunks, 1, 0, {up});
    return builder.take();
  }
  const uint32_t parent[] = {rank_of(tree.parent(node))};
  up.send_to = parent;
  StepSpec down = {.flags = kReceive | kStore | kFinal, .receive_from = parent};
  if (!children.empty()) {
    down.flags |= kSend;
    down.send_to = children;
  }
  const uint32_t lag = std::min(2 * tree.depth(node), chunks);
  builder.repeat(lag, 1, 0, {up});
  up.chunk = lag;
  builder.repeat(chunks - lag, 1, 0, {down, up});
  down.chunk = chunks - lag;
  builder.repeat(lag, 1, 0, {down});
  return builder.take();
}

// Neighbours in the tree are near in the ring: of D levels the upper log2 h lie between hosts, and a host has few edges
// to others, as a rank has in a tree of ranks.
void set_network(const CostInput& in, double chunks, double ways, Work* w) {
  const double fill = (w->rounds) / (ways * chunks);
  w->network_bytes = in.hosts > 1 ? w->sent_bytes * std::max(1.0, fill) : 0;
  w->network_rounds = in.hosts > 1 ? ways * std::bit_width(in.hosts - 1) + chunks - 1 : 0;
}

// T = (2 D + K - 1) (a + work of one chunk on both trees), D = ceil(log2 n), K chunks. A rank is an inner
// node of one tree and a leaf of the other, each with half of the bytes: it reduces 3 operands of B/2, and
// writes B/2 to its own output and 2 children on one tree and B/2 to its output on the other; staged adds the
// leaf's copy-in.
Work work(const CostInput& in) {
  const double chunks = in.pipeline_chunks;
  const double depth = std::bit_width(in.ranks - 1);
  const double fill = (2 * depth + chunks - 1) / chunks;
  Work w;
  w.rounds = 2 * depth + chunks - 1;
  w.messages = (in.ranks == 2 ? 4 : 8) * chunks;
  w.exchanged_bytes = fill * (in.direct ? 3 : 4) * in.bytes;
  w.reduce_bytes = fill * 1.5 * in.bytes;
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.pipeline_chunks;
  w.sent_bytes = (in.ranks == 2 ? 1 : 2) * in.bytes;
  set_network(in, chunks, 2, &w);
  return w;
}

// T = (D + K - 1) (a + work of one chunk), D = ceil(log2 n), K chunks; half of the bytes on each tree.
Work one_way_work(const CostInput& in, bool reduces) {
  const double chunks = in.pipeline_chunks, depth = std::bit_width(in.ranks - 1);
  const double fill = (depth + chunks - 1) / chunks;
  Work w;
  w.rounds = depth + chunks - 1;
  w.messages = (in.ranks == 2 ? 2 : 4) * chunks;
  w.exchanged_bytes = fill * (in.direct ? 1 : 2) * in.bytes;
  w.reduce_bytes = reduces ? fill * 1.5 * in.bytes : 0;
  w.memory_bytes = in.bytes;
  w.chunks = in.pipeline_chunks;
  w.sent_bytes = (in.ranks == 2 || reduces ? 1 : 2) * in.bytes;
  set_network(in, chunks, 1, &w);
  return w;
}
Work broadcast_work(const CostInput& in) { return one_way_work(in, false); }
Work reduce_work(const CostInput& in) { return one_way_work(in, true); }

}  // namespace

const Algorithm kBroadcastTree = {.collective = Collective::kBroadcast,
                                  .name = "tree",
                                  .description = "down a double binary tree, pipelined",
                                  .source = "Sanders, Speck and Traeff, Parallel Computing 2009",
                                  .rounding = "never",
                                  .input_used_once = true,
                                  .rank_ordered = true,
                                  .computed_once = true,
                                  .min_ranks = 1,
                                  .max_ranks = 65536,
                                  .channels = 2,
                                  .pipelined = true,
                                  .build = build_broadcast,
                                  .work = broadcast_work};
const Algorithm kReduceTree = {.collective = Collective::kReduce,
                               .name = "tree",
                               .description = "up a double binary tree, pipelined",
                               .source = "Sanders, Speck and Traeff, Parallel Computing 2009",
                               .rounding = "once per level (log2 n times), once in all with wide partials",
                               .forwards_partial_sums = true,
                               .input_used_once = true,
                               .computed_once = true,
                               .min_ranks = 1,
                               .max_ranks = 65536,
                               .channels = 2,
                               .pipelined = true,
                               .build = build_reduce,
                               .work = reduce_work};
const Algorithm kTree = {.collective = Collective::kAllReduce,
                         .name = "tree",
                         .description = "double binary tree, pipelined: logarithmic latency, nearly all bandwidth",
                         .source = "Sanders, Speck and Traeff, Parallel Computing 2009",
                         .rounding = "once per level (log2 n times), once in all with wide partials",
                         .forwards_partial_sums = true,
                         .input_used_once = true,
                         .rank_ordered = false,
                         .computed_once = true,
                         .min_ranks = 1,
                         .max_ranks = 65536,
                         .channels = 2,
                         .pipelined = true,
                         .build = build,
                         .work = work};

}  // namespace treering
