// SPDX-License-Identifier: Apache-2.0
// LinkGraph: GPUs, what lies between them, and what each link carries each way: what a search for rings and trees reads.
//
// It is a type of its own, beside Topology. A Topology is one machine as hwloc finds it: a tree by containment, down to
// caches and cores, with links that are the same both ways. A search has no use for containment, and needs what does
// not fit there: several hosts, switches and networks that nothing contains, a rate for each direction, and where each
// rate comes from.
//
//   gpu0 == nvlink == gpu1        nodes: GPUs, packages, NUMA nodes, PCI bridges, NVSwitches, NICs, networks
//     |                 |         links: at most one of a kind between two nodes; `count` of them act as one
//    pcie              pcie
//     |                 |
//   cpu0 --- socket --- cpu1
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace treering {

// Who says what a link carries.
enum class LinkOrigin : uint8_t { kReported, kTable, kMeasured, kGiven };
const char* name_of(LinkOrigin origin);

struct GraphNode {
  NodeKind kind = NodeKind::kGpu;
  std::string name;     // "gpu3", "host1/cpu0"; no two nodes have the same
  int32_t number = -1;  // of a GPU: what rings and trees call it; no two GPUs have the same
};

struct GraphLink {
  uint32_t a = 0, b = 0;  // indices into LinkGraph::nodes
  LinkKind kind = LinkKind::kPcie;
  double gbps_ab = 0, gbps_ba = 0;  // 10^9 bytes per second from a to b, and back
  uint32_t count = 1;               // of links or lanes; the rates are of all together
  LinkOrigin origin = LinkOrigin::kGiven;
};

struct LinkGraph {
  std::vector<GraphNode> nodes;
  std::vector<GraphLink> links;

  std::vector<uint32_t> gpus() const;  // nodes, by ascending number
};

// What one link or lane of a generation carries each way, in 10^9 bytes per second, after line coding and before the
// headers of packets. Nothing where the table has no such generation.
std::optional<double> table_gbps(LinkKind kind, uint32_t generation);

inline constexpr uint32_t kDefaultNvlinkGeneration = 4;
inline constexpr uint32_t kDefaultXgmiGeneration = 3;

}  // namespace treering
