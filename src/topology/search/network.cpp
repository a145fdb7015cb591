// SPDX-License-Identifier: Apache-2.0
#include "topology/search/network.h"

#include <algorithm>
#include <functional>

namespace treering::search {
namespace {

// Arcs between nodes of the LinkGraph, from which needless transit nodes are taken.
class Reduction {
 public:
  Reduction(const LinkGraph& graph, const std::vector<char>& is_transit, const std::vector<char>& is_left_out)
      : is_transit_(is_transit), entering_(graph.nodes.size()), leaving_(graph.nodes.size()) {
    for (uint32_t i = 0; i < graph.links.size(); ++i) {
      const GraphLink& link = graph.links[i];
      if (is_left_out[link.a] != 0 || is_left_out[link.b] != 0) continue;
      if (link.gbps_ab > 0) add({link.a, link.b, link.gbps_ab, {i}});
      if (link.gbps_ba > 0) add({link.b, link.a, link.gbps_ba, {i}});
    }
  }

  std::vector<Arc> run() {
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t node = 0; node < is_transit_.size(); ++node)
        if (is_transit_[node] != 0 && entering_[node].size() + leaving_[node].size() > 0) changed |= reduce(node);
    }
    std::vector<Arc> result;
    for (size_t i = 0; i < arcs_.size(); ++i)
      if (is_used_[i] != 0) result.push_back(arcs_[i]);
    return result;
  }

 private:
  void add(Arc arc) {
    const auto index = static_cast<uint32_t>(arcs_.size());
    entering_[arc.to].push_back(index);
    leaving_[arc.from].push_back(index);
    arcs_.push_back(std::move(arc));
    is_used_.push_back(1);
  }

  void remove(uint32_t arc) {
    std::erase(entering_[arcs_[arc].to], arc);
    std::erase(leaving_[arcs_[arc].from], arc);
    is_used_[arc] = 0;
  }

  // Whether `node` had no choice, and is gone.
  bool reduce(uint32_t node) {
    const std::vector<uint32_t> in = entering_[node], out = leaving_[node];
    if (in.size() > 2 || out.size() > 2) return false;
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    for (uint32_t arrival : in)
      for (uint32_t departure : out)
        if (arcs_[arrival].from != arcs_[departure].to) pairs.push_back({arrival, departure});
    std::vector<char> taken(arcs_.size(), 0);
    for (const auto& [arrival, departure] : pairs) {
      if (taken[arrival] != 0 || taken[departure] != 0) return false;  // the arc shares what it carries
      taken[arrival] = taken[departure] = 1;
    }
    for (const auto& [arrival, departure] : pairs) {
      Arc joined{arcs_[arrival].from, arcs_[departure].to, std::min(arcs_[arrival].gbps, arcs_[departure].gbps),
                 arcs_[arrival].links};
      joined.links.insert(joined.links.end(), arcs_[departure].links.begin(), arcs_[departure].links.end());
      add(std::move(joined));
    }
    for (uint32_t arc : in) remove(arc);
    for (uint32_t arc : out) remove(arc);
    return true;
  }

  const std::vector<char>& is_transit_;
  std::vector<Arc> arcs_;
  std::vector<char> is_used_;
  std::vector<std::vector<uint32_t>> entering_, leaving_;
};

}  // namespace

Network::Network(const LinkGraph& graph, std::span<const uint32_t> gpu_nodes)
    : gpus(static_cast<uint32_t>(gpu_nodes.size())), nodes(gpus) {
  std::vector<char> is_transit(graph.nodes.size(), 0), is_left_out(graph.nodes.size(), 0);
  for (size_t node = 0; node < graph.nodes.size(); ++node) {
    is_transit[node] = graph.nodes[node].kind != NodeKind::kGpu;
    is_left_out[node] = graph.nodes[node].kind == NodeKind::kGpu;
  }
  constexpr uint32_t kNoNumber = UINT32_MAX;
  std::vector<uint32_t> number(graph.nodes.size(), kNoNumber);
  for (uint32_t i = 0; i < gpus; ++i) number[gpu_nodes[i]] = i, is_left_out[gpu_nodes[i]] = 0;
  arcs = Reduction(graph, is_transit, is_left_out).run();
  const auto number_of = [&](uint32_t node) {
    if (number[node] == kNoNumber) number[node] = nodes++;
    return number[node];
  };
  for (Arc& arc : arcs) arc.from = number_of(arc.from), arc.to = number_of(arc.to);
  leaving.resize(nodes);
  for (uint32_t i = 0; i < arcs.size(); ++i) leaving[arcs[i].from].push_back(i);
}

std::vector<double> Network::capacities() const {
  std::vector<double> result;
  for (const Arc& arc : arcs) result.push_back(arc.gbps);
  return result;
}

Paths::Paths(const Network& network)
    : network_(network),
      distances_(size_t{network.gpus} * network.gpus, kUnreached),
      into_(size_t{network.gpus} * network.nodes, 0),
      reached_(network.nodes) {}

void Paths::find(std::span<const double> prices) {
  for (uint32_t gpu = 0; gpu < network_.gpus; ++gpu) find_from(gpu, prices);
}

// Dijkstra's algorithm; no path goes on from a GPU.
void Paths::find_from(uint32_t gpu, std::span<const double> prices) {
  std::fill(reached_.begin(), reached_.end(), kUnreached);
  uint32_t* const into = &into_[size_t{gpu} * network_.nodes];
  reached_[gpu] = 0;
  heap_.assign(1, {0.0, gpu});
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [distance, node] = heap_.back();
    heap_.pop_back();
    if (distance > reached_[node] || (node < network_.gpus && node != gpu)) continue;
    for (uint32_t arc : network_.leaving[node]) {
      const uint32_t next = network_.arcs[arc].to;
      const double there = distance + prices[arc];
      if (there >= reached_[next]) continue;
      reached_[next] = there;
      into[next] = arc;
      if (next < network_.gpus) continue;
      heap_.push_back({there, next});
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
  std::copy_n(reached_.begin(), network_.gpus, distances_.begin() + size_t{gpu} * network_.gpus);
}

}  // namespace treering::search
