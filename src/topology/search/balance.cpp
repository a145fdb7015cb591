// SPDX-License-Identifier: Apache-2.0
#include "topology/search/balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "topology/search/cycle.h"

namespace treering::search {
namespace {

constexpr double kSteepness = 12;      // how much more a full arc costs than an empty one: e to this
constexpr double kMaxExponent = 100;   // e to twice this is far below kUnreached
constexpr uint32_t kMaxExactHere = 9;  // GPUs up to which the shortest cycle takes microseconds
constexpr size_t kKicks = 4;
constexpr double kFull = 1 + 1e-9;

class Balance {
 public:
  Balance(const Network& network, Pattern pattern, double rate)
      : network_(network), pattern_(pattern), paths_(network), used_(network.arcs.size(), 0), costs_(used_.size(), 0) {
    for (const Arc& arc : network.arcs) step_.push_back(rate / arc.gbps);
    for (uint32_t arc = 0; arc < costs_.size(); ++arc) price(arc);
  }

  std::vector<Column> run(size_t count, size_t passes) {
    for (size_t i = 0; i < count; ++i) {
      columns_.push_back(next());
      if (columns_.back().hops.empty()) return {};
    }
    for (size_t pass = 0; pass < passes && fullest() > kFull; ++pass)
      for (Column& column : columns_) {
        for (const ArcLoad& load : column.loads) use(load.arc, -load.times);
        column = next();
      }
    return std::move(columns_);
  }

 private:
  // What one more use of the arc adds to the sum of e^(steepness x how full it is).
  void price(uint32_t arc) {
    const double now = std::min(kSteepness * used_[arc], kMaxExponent);
    const double more = std::min(kSteepness * step_[arc], kMaxExponent);
    costs_[arc] = std::exp(now) * std::expm1(more);
  }

  void use(uint32_t arc, double times) {
    used_[arc] = std::max(0.0, used_[arc] + times * step_[arc]);
    price(arc);
  }

  double fullest() const { return *std::max_element(used_.begin(), used_.end()); }

  // The cheapest column as things are; it is in use afterwards. Without hops: there is none.
  Column next() {
    paths_.find(costs_);
    if (pattern_ == Pattern::kTree) {
      const std::vector<Edge> edges = spread_tree();
      return edges.size() + 1 == network_.gpus ? tree_column(paths_, edges) : Column();
    }
    const std::vector<uint32_t> order = cheap_cycle();
    if (cycle_length(paths_.distances(), network_.gpus, order) >= kUnreached) return {};
    Column ring = ring_column(paths_, order);
    for (const ArcLoad& load : ring.loads) use(load.arc, load.times);
    return ring;
  }

  std::vector<uint32_t> cheap_cycle() const {
    const std::vector<double>& distances = paths_.distances();
    if (network_.gpus <= kMaxExactHere) return shortest_cycle(distances, network_.gpus);
    std::vector<uint32_t> order = short_cycle(distances, network_.gpus, kKicks);
    if (network_.gpus <= kMaxExactCycle && cycle_length(distances, network_.gpus, order) >= kUnreached)
      order = shortest_cycle(distances, network_.gpus);
    return order;
  }

  double cost(uint32_t a, uint32_t b) const {
    if (std::max(paths_.distance(a, b), paths_.distance(b, a)) >= kUnreached) return kUnreached;
    double sum = 0;
    paths_.visit_path(a, b, [&](uint32_t arc) { sum += costs_[arc]; });
    paths_.visit_path(b, a, [&](uint32_t arc) { sum += costs_[arc]; });
    return sum;
  }

  void use(const Edge& edge, double times) {
    paths_.visit_path(edge.first, edge.second, [&](uint32_t arc) { use(arc, times); });
    paths_.visit_path(edge.second, edge.first, [&](uint32_t arc) { use(arc, times); });
  }

  // The cheapest edge between GPUs that are inside and those that are not; {0, 0} where there is none.
  Edge joining(const std::vector<char>& inside) const {
    Edge best{0, 0};
    double least = kUnreached;
    for (uint32_t a = 0; a < network_.gpus; ++a)
      for (uint32_t b = 0; inside[a] != 0 && b < network_.gpus; ++b) {
        if (inside[b] != 0) continue;
        const double now = cost(a, b);
        if (now < least) best = {a, b}, least = now;
      }
    return best;
  }

  // A tree uses an arc several times, so what each edge costs depends on those before it: Prim's algorithm with costs
  // that rise, then each edge once more. Behind a switch it makes a path where a lightest tree would be a star.
  std::vector<Edge> spread_tree() {
    std::vector<Edge> edges;
    std::vector<char> inside(network_.gpus, 0);
    inside[0] = 1;
    while (edges.size() + 1 < network_.gpus) {
      const Edge edge = joining(inside);
      if (edge.first == edge.second) return {};
      edges.push_back(edge);
      use(edge, 1);
      inside[edge.second] = 1;
    }
    for (size_t i = 0; i < edges.size(); ++i) {
      use(edges[i], -1);
      const Edge edge = joining(side_without(edges, i));
      if (edge.first != edge.second && cost(edge.first, edge.second) < cost(edges[i].first, edges[i].second))
        edges[i] = edge;
      use(edges[i], 1);
    }
    return edges;
  }

  // Which GPUs hang together with GPU 0 where edge `without` is away.
  std::vector<char> side_without(const std::vector<Edge>& edges, size_t without) const {
    std::vector<char> side(network_.gpus, 0);
    side[0] = 1;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < edges.size(); ++i) {
        const auto& [a, b] = edges[i];
        if (i == without || side[a] == side[b]) continue;
        side[a] = side[b] = 1;
        changed = true;
      }
    }
    return side;
  }

  const Network& network_;
  const Pattern pattern_;
  Paths paths_;
  std::vector<double> used_;   // of each arc: how full it is, 1 where it is full
  std::vector<double> step_;   // what one use adds to that
  std::vector<double> costs_;  // of one more use
  std::vector<Column> columns_;
};

}  // namespace

std::vector<Column> balanced_columns(const Network& network, Pattern pattern, size_t count, double rate,
                                     size_t passes) {
  return Balance(network, pattern, rate).run(count, passes);
}

}  // namespace treering::search
