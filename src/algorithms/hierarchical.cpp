// SPDX-License-Identifier: Apache-2.0
// Hierarchical ring and 2D ring allreduce: reduce-scatter inside each host, a ring between hosts for every local rank's
// own shard, allgather inside each host.
//
//   shard j:   host 0 -> host 1 -> host 2 -> host 0        a shard has a chunk for every host; each travels once around
//                                                          to be summed and once more to be handed out
//
// The chunk that a rank needs next is what its host's ranks send it next, and the sum over the host, the sum with what
// comes from the host before and the send to the host behind are one step. So a chunk passes through memory once on its
// way. Calls of some MiB are cut into several slices, whose phases overlap (largest_message). Between hosts each link
// carries 2 (h-1)/h B, the least possible, and all channels turn the same way: a host receives from one other host, so
// that no two flows meet in the queue before its link.
//
// Direct exchange inside: Cho et al., "BlueConnect", MLSys 2019; rings both ways: Mikami et al., "Massively distributed
// SGD", 2018 (2D torus).
#include <algorithm>

#include "algorithms/algorithm.h"
#include "algorithms/host_grid.h"

namespace treering {
namespace {

class RingOfHosts {
 public:
  RingOfHosts(const Plan& plan, uint32_t rank, LocalPhase local) : grid_(plan, rank, local) {}
  const HostGrid& grid() const { return grid_; }

  // One round: the chunk that started `back` hosts before this one. `first`: it starts here; `last`: this host's sum
  // makes it the result; `results`: it is the result; `forwards`: the host behind still wants it.
  struct Round {
    uint32_t back;
    bool first, last, results, forwards;
  };
  GridSteps steps_of(const Round& round) const {
    const uint32_t h = grid_.hosts(), first_chunk = (grid_.host() + 2 * h - round.back) % h * grid_.shards();
    GridSteps steps;
    for (uint32_t turn = 0; turn < grid_.turns(); ++turn) {
      const bool sums = !round.results;
      if (sums) grid_.scatter(turn, first_chunk, &steps);
      if (grid_.owns(turn)) steps.push_back(owners_step(round, first_chunk, grid_.shard(turn)));
      if (round.last || round.results) grid_.gather(turn, first_chunk, &steps);
    }
    return steps;
  }

 private:
  GridStep owners_step(const Round& round, uint32_t first_chunk, uint32_t shard) const {
    GridStep step = {0, first_chunk + shard, {}, {}};
    if (!round.results) {
      step.flags |= kInput;
      step.from = grid_.combined();
    }
    const uint32_t h = grid_.hosts(), before = (grid_.host() + h - 1) % h, behind = (grid_.host() + 1) % h;
    if (!round.first) step.from.push_back(grid_.owner(before, shard));
    if (!step.from.empty()) step.flags |= round.results ? unsigned{kReceive} : kReceive | kReduce;
    if (round.forwards) step.to.push_back(grid_.owner(behind, shard));
    if (round.last || round.results) {
      step.flags |= kStore | kFinal;
      step.to.insert(step.to.end(), grid_.handed().begin(), grid_.handed().end());
    }
    if (!step.to.empty()) step.flags |= kSend;
    return step;
  }
  HostGrid grid_;
};

Schedule build_grid(const Plan& plan, uint32_t rank, LocalPhase local) {
  if (plan.ranks == 1) return single_rank_schedule();
  const RingOfHosts ring(plan, rank, local);
  const uint32_t h = ring.grid().hosts(), shards = ring.grid().shards();
  const auto back = -static_cast<int32_t>(shards);
  ScheduleBuilder builder(rank, plan.ranks, h * shards, ring.grid().fifo_depth());
  const auto append = [&](uint32_t count, const RingOfHosts::Round& round) {
    append_block(&builder, count, back, ring.steps_of(round));
  };
  if (h == 1) {
    append(1, {.back = 0, .first = true, .last = true, .results = false, .forwards = false});
    return builder.take();
  }
  append(1, {.back = 0, .first = true, .last = false, .results = false, .forwards = true});
  append(h - 2, {.back = 1, .first = false, .last = false, .results = false, .forwards = true});
  append(1, {.back = h - 1, .first = false, .last = true, .results = false, .forwards = true});
  append(h - 2, {.back = h, .first = false, .last = false, .results = true, .forwards = true});
  append(1, {.back = 2 * h - 2, .first = false, .last = false, .results = true, .forwards = false});
  return builder.take();
}

Schedule build(const Plan& plan, uint32_t rank, const Shape&) { return build_grid(plan, rank, LocalPhase::kDirect); }
Schedule build_ring(const Plan& plan, uint32_t rank, const Shape&) { return build_grid(plan, rank, LocalPhase::kRing); }

// With h hosts of g ranks: T = 2 (h-1) a2 + 2 (h-1)/h B b2 between hosts (b2 for a host's link), with the phases inside
// (2 (g-1)/g B) hidden behind it.
Work grid_work(const CostInput& in, bool ring) {
  const double g = in.largest_host(), h = in.hosts;
  const double inner = (g - 1) / g * in.bytes, outer = (h - 1) / h * in.bytes;
  Work w;
  w.network_rounds = 2 * (h - 1);
  w.rounds = w.network_rounds + (ring ? 2 * (g - 1) : 2);
  w.messages = 4 * (g - 1) * h + 4 * (h - 1);
  w.sent_bytes = 2 * inner + 2 * outer / g;
  w.network_messages = 4 * (h - 1);
  w.network_bytes = 2 * outer;
  w.network_sources = 1;
  w.exchanged_bytes = (ring ? 4 : 3) * inner + in.bytes / g + 4 * outer / g;
  w.reduce_bytes = ring ? 2 * inner + outer / g : (g > 1 ? in.bytes + outer / g : 2 * outer);
  w.memory_bytes = 2 * in.bytes;
  w.chunks = in.hosts * in.largest_host();
  return w;
}
Work work(const CostInput& in) { return grid_work(in, false); }
Work ring_work(const CostInput& in) { return grid_work(in, true); }

constexpr Algorithm row(const char* name, const char* description, const char* source, const char* rounding,
                        Schedule (*build)(const Plan&, uint32_t, const Shape&), Work (*work)(const CostInput&)) {
  Algorithm row{};
  row.collective = Collective::kAllReduce;
  row.name = name;
  row.description = description;
  row.source = source;
  row.rounding = rounding;
  row.forwards_partial_sums = true;
  row.input_used_once = true;
  row.computed_once = true;
  row.all_local_peers = std::string_view(name) == "hierarchical";
  row.min_ranks = 1;
  row.max_ranks = 65536;
  row.min_hosts = 2;
  row.channels = 4;
  row.has_phases = true;
  row.build = build;
  row.work = work;
  return row;
}

}  // namespace

const Algorithm kHierarchical =
    row("hierarchical", "direct exchange inside hosts, a ring between them on every rank's shard",
        "Cho et al., BlueConnect, MLSys 2019", "once per host (h times), once in all with wide partials", build, work);
const Algorithm kRing2d =
    row("ring-2d", "rings inside hosts, a ring between them on every rank's shard", "Mikami et al., 2018 (2D torus)",
        "once per hop (g + h times), once in all with wide partials", build_ring, ring_work);

}  // namespace treering
