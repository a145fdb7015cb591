// SPDX-License-Identifier: Apache-2.0
// Topology: what a machine is made of and how its parts are connected, as a graph.
//
// Nodes form a tree by containment (`parent`); links carry what moves between nodes. Detection fills in what
// it knows and leaves the rest unknown: an index is -1, a size, bandwidth or latency 0, and nothing that
// reads a Topology may rely on more. What searches for rings and trees read is a LinkGraph (graph.h).
//
//   machine
//   +- package 0 ------ socket ------ package 1        containment: lines going down
//   |  +- numa 0 (memory bus)         +- numa 1        links:       lines with a name
//   |     +- L3 0                        +- L3 1
//   |     |  +- core 0, core 1 ...          +- ...
//   |     +- bridge -- pcie -- gpu
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace treering {

enum class NodeKind : uint8_t {
  kMachine,
  kPackage,
  kNumaNode,
  kCache,
  kCore,
  kGpu,
  kNic,
  kPciBridge,
  kNvSwitch,
  kNetwork
};
enum class LinkKind : uint8_t { kMemoryBus, kSocket, kPcie, kNvlink, kXgmi, kNetwork };

// One lower-case word each: "package", "socket".
const char* name_of(NodeKind kind);
const char* name_of(LinkKind kind);

struct TopologyNode {
  NodeKind kind = NodeKind::kMachine;
  std::string name;            // "package 0", "NVIDIA ...", "eth0"
  int32_t parent = -1;         // index into Topology::nodes; -1 for the machine
  int32_t index = -1;          // among the nodes of its kind, in hardware order
  int32_t os_index = -1;       // the operating system's number (what binding calls take), -1 where it has none
  std::vector<uint32_t> cpus;  // the processing units inside, by OS index, ascending
  uint64_t memory_bytes = 0;   // of a NUMA node and of the machine
  uint64_t cache_bytes = 0;    // of a cache
  std::string pci_bus_id;      // "0000:3b:00.0"
};

struct TopologyLink {
  uint32_t a = 0;  // indices into Topology::nodes; a link serves both directions
  uint32_t b = 0;
  LinkKind kind = LinkKind::kMemoryBus;
  double bandwidth_gbps = 0;  // 10^9 bytes per second, each direction
  double latency_us = 0;
};

// What this process may use, and what says so.
struct CpuLimits {
  std::vector<uint32_t> cpus;  // processing units of the inherited affinity, by OS index, ascending
  uint32_t machine_cores = 0;
  uint32_t affinity_cores = 0;   // cores with at least one of `cpus`
  double quota_cpus = 0;         // CPU time per time that the cgroup grants; 0 = no limit
  std::string quota_source;      // the file that sets it
  uint32_t cores_available = 0;  // min(affinity_cores, ceil(quota_cpus)), at least 1
};

struct Topology {
  std::vector<TopologyNode> nodes;  // nodes[0] is the machine; a parent comes before its children
  std::vector<TopologyLink> links;
  CpuLimits limits;
  bool this_system = true;  // false: a description of another machine; nothing may be bound by it
};

// Where a core is. Numbers are those of Location: OS indices of package and NUMA node, indices of cache and
// core.
struct CorePlace {
  int32_t package = -1;
  int32_t numa_node = -1;
  int32_t cache = -1;
  int32_t core = -1;
  std::vector<uint32_t> cpus;

  auto key() const { return std::tie(package, numa_node, cache, core); }
};

// The cores in the order of `key()`; only those with a processing unit of limits.cpus where `allowed_only`.
std::vector<CorePlace> core_places(const Topology& topology, bool allowed_only);

// The nearest node of `kind` that contains node `index` (or is it); -1 if none does.
int32_t ancestor(const Topology& topology, int32_t index, NodeKind kind);

// Gives `limits` its counts from `cpus` and the quota.
void count_cores(Topology& topology);

// "0-3,8": ascending numbers.
std::string format_cpus(std::span<const uint32_t> cpus);

}  // namespace treering
