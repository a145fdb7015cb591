// SPDX-License-Identifier: Apache-2.0
// Network: a LinkGraph as the search sees it: GPUs, the transit nodes between them, and an arc for each direction of each
// link. Paths: the cheapest path of each pair of GPUs through nodes that are no GPUs.
//
// A transit node with two neighbours and no choice (a NIC between its GPU and the network) is no node here: its two
// links are one arc, as fast as the slower one. Dead ends are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "topology/graph.h"

namespace treering::search {

struct Arc {
  uint32_t from = 0, to = 0;
  double gbps = 0;
  std::vector<uint32_t> links;  // of the LinkGraph, in the order in which the arc passes them
};

struct Network {
  uint32_t gpus = 0;   // nodes 0 to gpus - 1 are the GPUs, in the order that was given
  uint32_t nodes = 0;  // with the transit nodes, which come behind
  std::vector<Arc> arcs;
  std::vector<std::vector<uint32_t>> leaving;  // of each node: arcs

  Network(const LinkGraph& graph, std::span<const uint32_t> gpu_nodes);

  std::vector<double> capacities() const;
};

// The distance of a pair without a path, and more than any path costs.
inline constexpr double kUnreached = 1e100;

class Paths {
 public:
  explicit Paths(const Network& network);

  // Prices of the arcs, none below 0 and their sum far below kUnreached.
  void find(std::span<const double> prices);

  double distance(uint32_t from, uint32_t to) const { return distances_[from * network_.gpus + to]; }
  const std::vector<double>& distances() const { return distances_; }  // [from * gpus + to]

  // Calls visit(arc) for each arc of the path, the last one first.
  template <class Visit>
  void visit_path(uint32_t from, uint32_t to, Visit visit) const {
    for (uint32_t node = to; node != from;) {
      const uint32_t arc = into_[size_t{from} * network_.nodes + node];
      visit(arc);
      node = network_.arcs[arc].from;
    }
  }

 private:
  void find_from(uint32_t gpu, std::span<const double> prices);

  const Network& network_;
  std::vector<double> distances_;
  std::vector<uint32_t> into_;  // [gpu * nodes + node]: the last arc on the way
  std::vector<double> reached_;
  std::vector<std::pair<double, uint32_t>> heap_;
};

}  // namespace treering::search
