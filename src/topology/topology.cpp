// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.h"

#include <algorithm>
#include <cmath>

namespace treering {

const char* name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kMachine:
      return "machine";
    case NodeKind::kPackage:
      return "package";
    case NodeKind::kNumaNode:
      return "numa";
    case NodeKind::kCache:
      return "cache";
    case NodeKind::kCore:
      return "core";
    case NodeKind::kGpu:
      return "gpu";
    case NodeKind::kNic:
      return "nic";
    case NodeKind::kPciBridge:
      return "bridge";
    case NodeKind::kNvSwitch:
      return "nvswitch";
    case NodeKind::kNetwork:
      return "network";
  }
  return "unknown";
}

const char* name_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::kMemoryBus:
      return "memory";
    case LinkKind::kSocket:
      return "socket";
    case LinkKind::kPcie:
      return "pcie";
    case LinkKind::kNvlink:
      return "nvlink";
    case LinkKind::kXgmi:
      return "xgmi";
    case LinkKind::kNetwork:
      return "network";
  }
  return "unknown";
}

int32_t ancestor(const Topology& topology, int32_t index, NodeKind kind) {
  while (index >= 0 && topology.nodes[static_cast<size_t>(index)].kind != kind)
    index = topology.nodes[static_cast<size_t>(index)].parent;
  return index;
}

namespace {

bool intersects(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return std::any_of(a.begin(), a.end(), [&](uint32_t cpu) { return std::binary_search(b.begin(), b.end(), cpu); });
}

const TopologyNode* ancestor_node(const Topology& topology, size_t index, NodeKind kind) {
  const int32_t found = ancestor(topology, static_cast<int32_t>(index), kind);
  return found < 0 ? nullptr : &topology.nodes[static_cast<size_t>(found)];
}

}  // namespace

std::vector<CorePlace> core_places(const Topology& topology, bool allowed_only) {
  std::vector<CorePlace> places;
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    const TopologyNode& node = topology.nodes[i];
    if (node.kind != NodeKind::kCore) continue;
    if (allowed_only && !intersects(node.cpus, topology.limits.cpus)) continue;
    CorePlace place;
    place.core = node.index;
    place.cpus = node.cpus;
    if (const TopologyNode* package = ancestor_node(topology, i, NodeKind::kPackage)) place.package = package->os_index;
    if (const TopologyNode* numa = ancestor_node(topology, i, NodeKind::kNumaNode)) place.numa_node = numa->os_index;
    if (const TopologyNode* cache = ancestor_node(topology, i, NodeKind::kCache)) place.cache = cache->index;
    places.push_back(std::move(place));
  }
  std::sort(places.begin(), places.end(), [](const CorePlace& a, const CorePlace& b) { return a.key() < b.key(); });
  return places;
}

void count_cores(Topology& topology) {
  CpuLimits& limits = topology.limits;
  limits.machine_cores = static_cast<uint32_t>(core_places(topology, false).size());
  limits.affinity_cores = static_cast<uint32_t>(core_places(topology, true).size());
  limits.cores_available = limits.affinity_cores;
  if (limits.quota_cpus > 0 && limits.quota_cpus < limits.affinity_cores)
    limits.cores_available = static_cast<uint32_t>(std::ceil(limits.quota_cpus));
  limits.cores_available = std::max(limits.cores_available, 1u);
}

std::string format_cpus(std::span<const uint32_t> cpus) {
  std::string text;
  for (size_t first = 0; first < cpus.size();) {
    size_t last = first;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[first]);
    if (last > first) text += '-' + std::to_string(cpus[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace treering
