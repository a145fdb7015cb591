// SPDX-License-Identifier: Apache-2.0
#include "topology/search/cut.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace treering::search {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kLeft = 1e-9;   // of a capacity: what counts as still free
constexpr double kCheap = 0.02;  // of the dearest path: what counts as nothing

// The largest flow from one GPU to another one, through all nodes, by shortest augmenting paths.
class Flow {
 public:
  explicit Flow(const Network& network) : network_(network), entering_(network.nodes) {
    for (uint32_t arc = 0; arc < network.arcs.size(); ++arc) entering_[network.arcs[arc].to].push_back(arc);
  }

  Cut least(uint32_t from, uint32_t to) {
    flow_.assign(network_.arcs.size(), 0);
    while (search(from, to)) augment(from, to);
    Cut cut;
    for (uint32_t gpu = 0; gpu < network_.gpus; ++gpu)
      if (step_[gpu].reached) cut.side.push_back(gpu);
    for (uint32_t arc = 0; arc < network_.arcs.size(); ++arc) {
      if (!step_[network_.arcs[arc].from].reached || step_[network_.arcs[arc].to].reached) continue;
      cut.arcs.push_back(arc);
      cut.gbps += network_.arcs[arc].gbps;
    }
    return cut;
  }

 private:
  struct Step {
    bool reached = false, forward = true;
    uint32_t arc = 0;
  };

  double free_on(uint32_t arc, bool forward) const {
    return forward ? network_.arcs[arc].gbps - flow_[arc] : flow_[arc];
  }

  bool search(uint32_t from, uint32_t to) {
    step_.assign(network_.nodes, {});
    step_[from].reached = true;
    std::vector<uint32_t> queue{from};
    for (size_t i = 0; i < queue.size() && !step_[to].reached; ++i) {
      const auto visit = [&](uint32_t arc, bool forward) {
        const uint32_t next = forward ? network_.arcs[arc].to : network_.arcs[arc].from;
        if (step_[next].reached || free_on(arc, forward) <= kLeft * network_.arcs[arc].gbps) return;
        step_[next] = {true, forward, arc};
        queue.push_back(next);
      };
      for (uint32_t arc : network_.leaving[queue[i]]) visit(arc, true);
      for (uint32_t arc : entering_[queue[i]]) visit(arc, false);
    }
    return step_[to].reached;
  }

  void augment(uint32_t from, uint32_t to) {
    const auto before = [&](uint32_t node) {
      const Step& step = step_[node];
      return step.forward ? network_.arcs[step.arc].from : network_.arcs[step.arc].to;
    };
    double amount = kNoLimit;
    for (uint32_t node = to; node != from; node = before(node))
      amount = std::min(amount, free_on(step_[node].arc, step_[node].forward));
    for (uint32_t node = to; node != from; node = before(node))
      flow_[step_[node].arc] += step_[node].forward ? amount : -amount;
  }

  const Network& network_;
  std::vector<std::vector<uint32_t>> entering_;
  std::vector<double> flow_;
  std::vector<Step> step_;
};

}  // namespace

// A cut separates GPU 0 from some other one, in one direction or the other.
Cut least_cut(const Network& network) {
  Flow flow(network);
  Cut best;
  best.gbps = kNoLimit;
  for (uint32_t other = 1; other < network.gpus; ++other)
    for (const auto& [from, to] : {std::pair{0u, other}, std::pair{other, 0u}})
      if (Cut cut = flow.least(from, to); cut.gbps < best.gbps) best = std::move(cut);
  return best;
}

std::vector<uint32_t> parts_at(const Network& network, const std::vector<double>& prices) {
  Paths paths(network);
  paths.find(prices);
  const auto both = [&](uint32_t a, uint32_t b) { return paths.distance(a, b) + paths.distance(b, a); };
  double dearest = 0;
  for (uint32_t a = 0; a < network.gpus; ++a)
    for (uint32_t b = 0; b < network.gpus; ++b)
      if (both(a, b) < kUnreached) dearest = std::max(dearest, both(a, b));
  std::vector<uint32_t> part(network.gpus, UINT32_MAX);
  uint32_t parts = 0;
  for (uint32_t first = 0; first < network.gpus; ++first) {
    if (part[first] != UINT32_MAX) continue;
    std::vector<uint32_t> unread{first};
    part[first] = parts;
    while (!unread.empty()) {
      const uint32_t here = unread.back();
      unread.pop_back();
      for (uint32_t there = 0; there < network.gpus; ++there)
        if (part[there] == UINT32_MAX && both(here, there) <= kCheap * dearest)
          part[there] = parts, unread.push_back(there);
    }
    ++parts;
  }
  return part;
}

}  // namespace treering::search
