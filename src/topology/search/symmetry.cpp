// SPDX-License-Identifier: Apache-2.0
#include "topology/search/symmetry.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace treering::search {
namespace {

// An arc of a GPU: the other end, whether it leaves the GPU, GB/s.
using ArcView = std::tuple<uint32_t, bool, double>;

// The arcs of `gpu` as they would be if it had changed names with `other`.
std::vector<ArcView> renamed(const std::vector<ArcView>& arcs, uint32_t gpu, uint32_t other) {
  std::vector<ArcView> result = arcs;
  for (auto& [end, leaves, gbps] : result)
    if (end == other) end = gpu;
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

std::vector<uint32_t> gpu_classes(const Network& network) {
  std::vector<std::vector<ArcView>> arcs(network.gpus);
  for (const Arc& arc : network.arcs) {
    if (arc.from < network.gpus) arcs[arc.from].push_back({arc.to, true, arc.gbps});
    if (arc.to < network.gpus) arcs[arc.to].push_back({arc.from, false, arc.gbps});
  }
  for (auto& of_gpu : arcs) std::sort(of_gpu.begin(), of_gpu.end());
  std::vector<uint32_t> result, first;  // the first GPU of each class: changing names is transitive
  for (uint32_t gpu = 0; gpu < network.gpus; ++gpu) {
    uint32_t found = 0;
    while (found < first.size() && renamed(arcs[gpu], gpu, first[found]) != arcs[first[found]]) ++found;
    if (found == first.size()) first.push_back(gpu);
    result.push_back(found);
  }
  return result;
}

Rows rows_of(const Network& network, bool by_class) {
  Rows rows;
  if (!by_class) {
    rows.capacities = network.capacities();
    for (uint32_t arc = 0; arc < network.arcs.size(); ++arc) rows.of_arc.push_back(arc);
    return rows;
  }
  const std::vector<uint32_t> classes = gpu_classes(network);
  const auto end_of = [&](uint32_t node) {
    return std::pair(node < network.gpus, node < network.gpus ? classes[node] : node);
  };
  std::map<std::tuple<std::pair<bool, uint32_t>, std::pair<bool, uint32_t>, double>, uint32_t> known;
  for (const Arc& arc : network.arcs) {
    const auto [row, is_new] =
        known.insert({{end_of(arc.from), end_of(arc.to), arc.gbps}, static_cast<uint32_t>(known.size())});
    if (is_new) rows.capacities.push_back(0);
    rows.capacities[row->second] += arc.gbps;
    rows.of_arc.push_back(row->second);
  }
  return rows;
}

}  // namespace treering::search
