// SPDX-License-Identifier: Apache-2.0
// Hybrid tree-ring allreduce: reduce-scatter inside each host, a tree between hosts for every local rank's own shard,
// allgather inside each host.
//
//   host 0:  r0 r1 r2 r3   --- shard j: the ranks j of all hosts ---   tree over the hosts, another one on every channel
//   host 1:  r4 r5 r6 r7                                                (node x is host x + channel, so that each host is
//   host 2:  r8 ...                                                      an inner node of some and a leaf of others)
//
// All three phases run side by side, chunk behind chunk. A host at distance d from its tree's root runs for chunk t
//
//   down(t - 2 d) to children and to its own ranks | results of its other shards | shards for its owners | up(t)
//
// which is the pipeline of the tree (tree.cpp) with the phases of the host hung into it: a host has one distance, so
// its ranks stay in step, and no FIFO inside it needs to hold more than the messages of one chunk.
//
// The tree: Sanders, Speck, Traeff, Parallel Computing 35(12), 2009. Shards inside, trees between: NCCL 2.4; the
// decomposition: Cho et al., "BlueConnect", MLSys 2019.
#include <algorithm>
#include <bit>

#include "algorithms/algorithm.h"
#include "algorithms/binary_tree.h"
#include "algorithms/host_grid.h"

namespace treering {
namespace {

constexpr uint32_t kTrees = 4;  // channels: with four hosts every link carries the same

// Which node of a channel's tree over `hosts` hosts a host is, and back.
uint32_t node_of(uint32_t host, uint32_t channel, uint32_t hosts) { return (host + hosts - channel % hosts) % hosts; }
uint32_t host_of(uint32_t node, uint32_t channel, uint32_t hosts) { return (node + channel) % hosts; }

class TreeOfHosts {
 public:
  TreeOfHosts(const HostGrid& grid, uint32_t channel) : grid_(grid), channel_(channel) {
    const BinaryTree tree{grid.hosts()};
    const uint32_t node = node_of(grid.host(), channel, grid.hosts());
    is_root_ = node == 0;
    depth_ = tree.depth(node);
    parent_ = tree.parent(node);
    children_ = tree.children(node);
  }
  uint32_t depth() const { return depth_; }

  void up(uint32_t first_chunk, uint32_t turn, GridSteps* steps) const {
    const uint32_t shard = grid_.shard(turn);
    GridStep step = {kInput, first_chunk + shard, grid_.combined(), {}};
    for (uint32_t child : children_) step.from.push_back(owner(child, shard));
    if (!step.from.empty()) step.flags |= kReceive | kReduce;
    if (is_root_)
      finish(shard, &step);
    else
      send(&step, {owner(parent_, shard)});
    steps->push_back(std::move(step));
  }
  void down(uint32_t first_chunk, uint32_t turn, GridSteps* steps) const {
    const uint32_t shard = grid_.shard(turn);
    GridStep step = {kReceive, first_chunk + shard, {owner(parent_, shard)}, {}};
    finish(shard, &step);
    steps->push_back(std::move(step));
  }
  bool is_root() const { return is_root_; }

 private:
  uint32_t owner(uint32_t node, uint32_t shard) const {
    return grid_.owner(host_of(node, channel_, grid_.hosts()), shard);
  }
  static void send(GridStep* step, std::vector<uint32_t> to) {
    if (to.empty()) return;
    step->flags |= kSend;
    step->to = std::move(to);
  }
  // The value is the result: it goes to the hosts below first, their way is the longer one.
  void finish(uint32_t shard, GridStep* step) const {
    step->flags |= kStore | kFinal;
    std::vector<uint32_t> to;
    for (uint32_t child : children_) to.push_back(owner(child, shard));
    to.insert(to.end(), grid_.handed().begin(), grid_.handed().end());
    send(step, std::move(to));
  }

  const HostGrid& grid_;
  uint32_t channel_;
  bool is_root_;
  uint32_t depth_, parent_;
  std::vector<uint32_t> children_;
};

// What a rank does for chunk `late` on the way down and for chunk `now` on the way up.
void add_down(const HostGrid& grid, const TreeOfHosts& tree, uint32_t first_chunk, GridSteps* steps) {
  for (uint32_t turn = 0; turn < grid.turns(); ++turn) {
    if (grid.owns(turn)) tree.down(first_chunk, turn, steps);
    grid.gather(turn, first_chunk, steps);
  }
}
void add_up(const HostGrid& grid, const TreeOfHosts& tree, uint32_t first_chunk, GridSteps* steps) {
  for (uint32_t turn = 0; turn < grid.turns(); ++turn) {
    grid.scatter(turn, first_chunk, steps);
    if (grid.owns(turn)) tree.up(first_chunk, turn, steps);
    if (tree.is_root()) grid.gather(turn, first_chunk, steps);
  }
}

Schedule build_grid(const Plan& plan, uint32_t rank, const Shape& shape, LocalPhase local) {
  const uint32_t chunks = shape.pipeline_chunks;
  if (plan.ranks == 1) return single_rank_schedule(chunks);
  const HostGrid grid(plan, rank, local);
  const TreeOfHosts tree(grid, shape.channel);
  const uint32_t shards = grid.shards();
  const auto stride = static_cast<int32_t>(shards);

  ScheduleBuilder builder(rank, plan.ranks, chunks * shards, grid.fifo_depth());
  GridSteps steps;
  const uint32_t lag = tree.is_root() ? 0 : std::min(2 * tree.depth(), chunks);
  add_up(grid, tree, 0, &steps);
  if (tree.is_root()) {
    append_block(&builder, chunks, stride, steps);
    return builder.take();
  }
  append_block(&builder, lag, stride, steps);
  steps.clear();
  add_down(grid, tree, 0, &steps);
  add_up(grid, tree, lag * shards, &steps);
  append_block(&builder, chunks - lag, stride, steps);
  steps.clear();
  add_down(grid, tree, (chunks - lag) * shards, &steps);
  append_block(&builder, lag, stride, steps);
  return builder.take();
}

Schedule build(const Plan& plan, uint32_t rank, const Shape& shape) {
  return build_grid(plan, rank, shape, LocalPhase::kDirect);
}
Schedule build_ring(const Plan& plan, uint32_t rank, const Shape& shape) {
  return build_grid(plan, rank, shape, LocalPhase::kRing);
}

// The part of the whole buffer that the busiest host sends: each tree moves its share up and down every edge.
double busiest_link(uint32_t hosts) {
  if (hosts == 1) return 0;
  const BinaryTree tree{hosts};
  uint32_t most = 0;
  for (uint32_t host = 0; host < hosts; ++host) {
    uint32_t edges = 0;
    for (uint32_t channel = 0; channel < kTrees; ++channel) {
      const uint32_t node = node_of(host, channel, hosts);
      edges += static_cast<uint32_t>(tree.children(node).size()) + (node != 0);
    }
    most = std::max(most, edges);
  }
  return static_cast<double>(most) / kTrees;
}

// With h hosts of g ranks, K chunks, D = ceil(log2 h):
// T = (2 D + K - 1) (a2 + B/(K g) b2) between hosts, with the phases inside (2 (g-1)/g B each) hidden behind it.
Work grid_work(const CostInput& in, bool ring) {
  const double g = in.largest_host(), h = in.hosts, chunks = in.pipeline_chunks;
  const double depth = std::bit_width(in.hosts - 1), fill = (2 * depth + chunks - 1) / chunks;
  const double inner = (g - 1) / g * in.bytes, shard = in.bytes / g, edges = 2 * (h - 1) / h;
  Work w;
  w.network_rounds = h > 1 ? 2 * depth + chunks - 1 : 0;
  w.rounds = w.network_rounds + (ring ? 2 * (g - 1) : 2);
  // Each rank sends and receives g-1 messages before and after; a host has (h-1)/h edges up and as many down.
  w.messages = kTrees * chunks * (4 * (g - 1) + 2 * edges);
  w.sent_bytes = 2 * inner + edges * shard;
  w.network_messages = kTrees * chunks * 2 * edges;
  w.network_bytes = busiest_link(in.hosts) * in.bytes * std::max(1.0, fill / 2);
  w.exchanged_bytes = (ring ? 4 : 3) * inner + shard + 2 * edges * shard;
  w.reduce_bytes = (ring ? 2 * inner : in.bytes) + edges * shard;
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.pipeline_chunks * in.largest_host();
  return w;
}
Work work(const CostInput& in) { return grid_work(in, false); }
Work ring_work(const CostInput& in) { return grid_work(in, true); }

constexpr Algorithm row(const char* name, const char* description,
                        Schedule (*build)(const Plan&, uint32_t, const Shape&), Work (*work)(const CostInput&)) {
  Algorithm row{};
  row.collective = Collective::kAllReduce;
  row.name = name;
  row.description = description;
  row.source = "Cho et al., BlueConnect, MLSys 2019; NCCL 2.4 (trees between hosts)";
  row.forwards_partial_sums = true;
  row.input_used_once = true;
  row.computed_once = true;
  row.all_local_peers = std::string_view(name) == "hybrid";
  row.min_ranks = 1;
  row.max_ranks = 65536;
  row.min_hosts = 2;
  row.channels = kTrees;
  row.pipelined = true;
  row.build = build;
  row.work = work;
  return row;
}

constexpr Algorithm with_rounding(Algorithm row, const char* rounding) {
  row.rounding = rounding;
  return row;
}

}  // namespace

const Algorithm kHybrid =
    with_rounding(row("hybrid", "direct exchange inside hosts, trees between them on every rank's shard", build, work),
                  "once per host and level of the tree (log2 h times), once in all with wide partials");
const Algorithm kHybridRing = with_rounding(
    row("hybrid-ring", "rings inside hosts, trees between them on every rank's shard", build_ring, ring_work),
    "once per hop inside the host and level of the tree, once in all with wide partials");

}  // namespace treering
