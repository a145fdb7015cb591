// SPDX-License-Identifier: Apache-2.0
// Random graphs, and the best rings and trees by trying all: nothing here is of the search but the packing programme,
// whose tests prove it by itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "topology/graph.h"
#include "topology/search/simplex.h"

namespace treering {

inline LinkGraph graph_with(uint32_t gpus, uint32_t transit) {
  LinkGraph graph;
  for (uint32_t i = 0; i < gpus; ++i)
    graph.nodes.push_back({NodeKind::kGpu, "gpu" + std::to_string(i), static_cast<int32_t>(i)});
  for (uint32_t i = 0; i < transit; ++i) graph.nodes.push_back({NodeKind::kPciBridge, "pci" + std::to_string(i), -1});
  return graph;
}

inline LinkGraph random_mesh(std::mt19937_64& random, uint32_t gpus) {
  LinkGraph graph = graph_with(gpus, 0);
  const uint64_t density = 2 + random() % 8;
  for (uint32_t a = 0; a < gpus; ++a)
    for (uint32_t b = a + 1; b < gpus; ++b) {
      const double gbps = static_cast<double>(1 + random() % 4) * 25;
      if (random() % 9 < density) graph.links.push_back({a, b, LinkKind::kNvlink, gbps, gbps});
    }
  return graph;
}

inline LinkGraph random_transit_graph(std::mt19937_64& random, uint32_t gpus, uint32_t transit) {
  LinkGraph graph = graph_with(gpus, transit);
  const uint32_t nodes = gpus + transit;
  for (uint32_t a = 0; a < nodes; ++a)
    for (uint32_t b = a + 1; b < nodes; ++b) {
      if (random() % 3 == 0) continue;
      const double ab = static_cast<double>(1 + random() % 5), ba = static_cast<double>(1 + random() % 5);
      graph.links.push_back({a, b, LinkKind::kPcie, ab, random() % 2 == 0 ? ab : ba});
    }
  return graph;
}

// `graph`, of GPUs alone, without all but some of them.
inline LinkGraph only_gpus(const LinkGraph& graph, const std::vector<int32_t>& numbers) {
  LinkGraph result = graph_with(static_cast<uint32_t>(numbers.size()), 0);
  for (GraphLink link : graph.links) {
    const auto a = std::find(numbers.begin(), numbers.end(), graph.nodes[link.a].number);
    const auto b = std::find(numbers.begin(), numbers.end(), graph.nodes[link.b].number);
    if (a == numbers.end() || b == numbers.end()) continue;
    link.a = static_cast<uint32_t>(a - numbers.begin()), link.b = static_cast<uint32_t>(b - numbers.begin());
    result.links.push_back(link);
  }
  return result;
}

// Bus bandwidth of trees of a graph of GPUs alone: the least, over all partitions, of what lies between the parts by
// their number less one.
inline double best_mesh_trees(const LinkGraph& graph) {
  const auto gpus = static_cast<uint32_t>(graph.nodes.size());
  std::vector<uint32_t> part(gpus, 0);
  double least = 1e30;
  const std::function<void(uint32_t, uint32_t)> try_all = [&](uint32_t gpu, uint32_t parts) {
    if (gpu == gpus) {
      if (parts < 2) return;
      double between = 0;
      for (const GraphLink& link : graph.links)
        if (part[link.a] != part[link.b]) between += std::min(link.gbps_ab, link.gbps_ba);
      least = std::min(least, between / (parts - 1));
      return;
    }
    for (part[gpu] = 0; part[gpu] <= parts; ++part[gpu]) {
      const uint32_t now = part[gpu];
      try_all(gpu + 1, std::max(parts, now + 1));
      part[gpu] = now;
    }
  };
  try_all(0, 0);
  return least * 2 * (gpus - 1) / gpus;
}

// A programme over columns that are told as what they load: [2 * link + (1 if from b to a)] -> times.
class AllColumns {
 public:
  explicit AllColumns(const LinkGraph& graph) : graph_(graph) {}

  void add(const std::map<uint32_t, double>& loads) {
    std::vector<std::pair<uint32_t, double>> key(loads.begin(), loads.end());
    columns_[key] = true;
  }

  double best() const {
    std::vector<double> capacities;
    std::vector<uint32_t> row(2 * graph_.links.size(), 0);
    for (uint32_t i = 0; i < row.size(); ++i) {
      const double gbps = i % 2 == 0 ? graph_.links[i / 2].gbps_ab : graph_.links[i / 2].gbps_ba;
      row[i] = static_cast<uint32_t>(capacities.size());
      capacities.push_back(gbps);
    }
    search::PackingProgramme programme(capacities);
    for (const auto& [loads, is_there] : columns_) {
      std::vector<search::RowEntry> entries;
      for (const auto& [at, times] : loads) entries.push_back({row[at], times});
      programme.add_column(std::move(entries));
    }
    programme.solve();
    return programme.value();
  }

 private:
  const LinkGraph& graph_;
  std::map<std::vector<std::pair<uint32_t, double>>, bool> columns_;
};

using LinkPath = std::vector<uint32_t>;  // 2 * link + (1 if from b to a)

// All paths without a circle from one GPU to another one through nodes that are no GPUs.
inline std::vector<LinkPath> all_paths(const LinkGraph& graph, uint32_t from, uint32_t to) {
  std::vector<LinkPath> found;
  std::vector<char> visited(graph.nodes.size(), 0);
  LinkPath path;
  const std::function<void(uint32_t)> go_on = [&](uint32_t here) {
    if (here == to) {
      found.push_back(path);
      return;
    }
    if (here != from && graph.nodes[here].kind == NodeKind::kGpu) return;
    visited[here] = 1;
    for (uint32_t i = 0; i < graph.links.size(); ++i)
      for (bool back : {false, true}) {
        const GraphLink& link = graph.links[i];
        const uint32_t next = back ? link.a : link.b;
        if ((back ? link.b : link.a) != here || visited[next] != 0) continue;
        path.push_back(2 * i + (back ? 1 : 0));
        go_on(next);
        path.pop_back();
      }
    visited[here] = 0;
  };
  go_on(from);
  return found;
}

// Adds a column for each choice of paths of the hops.
inline void add_all_choices(const std::vector<std::pair<uint32_t, uint32_t>>& hops,
                            const std::map<std::pair<uint32_t, uint32_t>, std::vector<LinkPath>>& paths,
                            AllColumns* columns) {
  std::map<uint32_t, double> loads;
  const std::function<void(size_t)> choose = [&](size_t hop) {
    if (hop == hops.size()) {
      columns->add(loads);
      return;
    }
    for (const LinkPath& path : paths.at(hops[hop])) {
      const std::map<uint32_t, double> before = loads;
      for (uint32_t at : path) loads[at] += 1;
      choose(hop + 1);
      loads = before;
    }
  };
  choose(0);
}

// Each spanning tree of `gpus` nodes, by the sequences of Pruefer.
inline std::vector<std::vector<std::pair<uint32_t, uint32_t>>> all_trees(uint32_t gpus) {
  if (gpus == 2) return {{{0, 1}}};
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> result;
  std::vector<uint32_t> sequence(gpus - 2, 0);
  for (bool more = true; more;) {
    std::vector<uint32_t> degree(gpus, 1);
    for (uint32_t node : sequence) ++degree[node];
    std::vector<std::pair<uint32_t, uint32_t>> edges;
    for (uint32_t node : sequence) {
      const auto leaf = static_cast<uint32_t>(std::find(degree.begin(), degree.end(), 1u) - degree.begin());
      edges.push_back({leaf, node});
      --degree[leaf], --degree[node];
    }
    const auto first = std::find(degree.begin(), degree.end(), 1u);
    const auto last = std::find(first + 1, degree.end(), 1u);
    edges.push_back({static_cast<uint32_t>(first - degree.begin()), static_cast<uint32_t>(last - degree.begin())});
    result.push_back(std::move(edges));
    more = false;
    for (uint32_t& node : sequence) {
      if (++node < gpus) {
        more = true;
        break;
      }
      node = 0;
    }
  }
  return result;
}

// Bus bandwidth by the programme over all rings, or all trees, with all paths of their hops; for a few GPUs.
inline double best_by_all_columns(const LinkGraph& graph, bool rings) {
  const auto gpus = static_cast<uint32_t>(graph.gpus().size());
  std::map<std::pair<uint32_t, uint32_t>, std::vector<LinkPath>> paths;
  for (uint32_t a = 0; a < gpus; ++a)
    for (uint32_t b = 0; b < gpus; ++b)
      if (a != b) paths[{a, b}] = all_paths(graph, a, b);
  AllColumns columns(graph);
  std::vector<uint32_t> order(gpus);
  std::iota(order.begin(), order.end(), 0u);
  if (rings) {
    do {
      std::vector<std::pair<uint32_t, uint32_t>> hops;
      for (uint32_t i = 0; i < gpus; ++i) hops.push_back({order[i], order[(i + 1) % gpus]});
      add_all_choices(hops, paths, &columns);
    } while (std::next_permutation(order.begin() + 1, order.end()));
    return columns.best();
  }
  for (const auto& tree : all_trees(gpus)) {
    std::vector<std::pair<uint32_t, uint32_t>> hops;
    for (const auto& [a, b] : tree) hops.push_back({a, b}), hops.push_back({b, a});
    add_all_choices(hops, paths, &columns);
  }
  return columns.best() * 2 * (gpus - 1) / gpus;
}

inline double best_mesh_rings(const LinkGraph& graph) { return best_by_all_columns(graph, true); }

}  // namespace treering
