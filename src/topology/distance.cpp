// SPDX-License-Identifier: Apache-2.0
#include "topology/distance.h"

#include <algorithm>

namespace treering {

int32_t distance_to_device(const Topology& topology, const std::string& pci_bus_id, std::span<const uint32_t> cpus) {
  const auto found = std::find_if(topology.nodes.begin(), topology.nodes.end(), [&](const TopologyNode& node) {
    return node.kind == NodeKind::kNic && node.pci_bus_id == pci_bus_id;
  });
  if (found == topology.nodes.end() || pci_bus_id.empty()) return -1;
  int32_t distance = 0;
  for (int32_t at = found->parent; at >= 0; at = topology.nodes[static_cast<size_t>(at)].parent) {
    const TopologyNode& node = topology.nodes[static_cast<size_t>(at)];
    if (node.cpus.empty()) continue;  // a bridge
    const bool has_one =
        std::any_of(cpus.begin(), cpus.end(), [&](uint32_t cpu) { return std::ranges::binary_search(node.cpus, cpu); });
    if (has_one) return distance;
    ++distance;
  }
  return -1;
}

}  // namespace treering
