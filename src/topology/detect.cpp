// SPDX-License-Identifier: Apache-2.0
#include "topology/detect.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "topology/cgroup.h"

namespace treering {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using Hwloc = std::unique_ptr<hwloc_topology, Destroy>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t b) const { hwloc_bitmap_free(b); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

constexpr unsigned kPciBaseNetwork = 0x02;
constexpr unsigned kPciBaseDisplay = 0x03;
constexpr unsigned kPciInfiniBand = 0x0c06;  // as older adapters call themselves

std::vector<uint32_t> to_cpus(hwloc_const_bitmap_t set) {
  std::vector<uint32_t> cpus;
  if (set == nullptr || hwloc_bitmap_weight(set) < 0) return cpus;  // an infinite set names nothing
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
    cpus.push_back(static_cast<uint32_t>(cpu));
  return cpus;
}

// Parts of hwloc that are left out: those that start a GPU's or a display's runtime only to name devices,
// which costs seconds, and the PCI reader on libpciaccess, which leaks; hwloc then reads sysfs, where link
// speeds need no privilege.
constexpr const char* kUnusedComponents[] = {"pci", "opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"};

Status load(const DetectOptions& options, Hwloc& hwloc) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {trSystemError, "hwloc_topology_init failed"};
  hwloc.reset(raw);
  for (const char* component : kUnusedComponents)  // one that this hwloc does not have is refused, to no effect
    (void)hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  if (options.devices) hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  const char* from_environment = std::getenv("HWLOC_SYNTHETIC");
  std::string synthetic = options.synthetic;
  if (synthetic.empty() && options.xml_path.empty() && from_environment != nullptr) synthetic = from_environment;
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0)
    return {trInvalidArgument,
            fmt::format("the synthetic topology '{}' is not valid; write it like 'package:2 numa:1 core:4 pu:1'",
                        synthetic)};
  const std::string not_xml =
      fmt::format("'{}' is no readable hwloc XML file; make one with 'lstopo-no-graphics FILE.xml'", options.xml_path);
  if (!options.xml_path.empty() && hwloc_topology_set_xml(raw, options.xml_path.c_str()) != 0)
    return {trInvalidArgument, not_xml};
  if (hwloc_topology_load(raw) == 0) return {};
  if (!options.xml_path.empty()) return {trInvalidArgument, not_xml};
  return {trSystemError, "hwloc_topology_load failed: the machine's topology cannot be read"};
}

class Builder {
 public:
  Builder(hwloc_topology_t hwloc, Topology& out) : hwloc_(hwloc), out_(out) {}

  void build() {
    add_machine();
    add_cpu_side();
    add_memory_links();
    add_socket_links();
    for (hwloc_obj_t object : objects_of(HWLOC_OBJ_PCI_DEVICE)) add_device(object);
  }

 private:
  struct Candidate {
    hwloc_obj_t object;
    NodeKind kind;
  };

  std::vector<hwloc_obj_t> objects_of(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> objects;
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(hwloc_, type, o)) != nullptr;) objects.push_back(o);
    return objects;
  }

  uint32_t add(NodeKind kind, std::string name, int32_t parent) {
    TopologyNode node;
    node.kind = kind;
    node.parent = parent;
    node.index = next_index_[static_cast<size_t>(kind)]++;
    node.name = name.empty() ? fmt::format("{} {}", name_of(kind), node.index) : std::move(name);
    out_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(out_.nodes.size() - 1);
  }

  void add_machine() {
    const hwloc_obj_t root = hwloc_get_root_obj(hwloc_);
    TopologyNode& machine = out_.nodes[add(NodeKind::kMachine, "machine", -1)];
    machine.cpus = to_cpus(root->cpuset);
    machine.memory_bytes = root->total_memory;
  }

  // hwloc keeps memory beside the tree of processors. Here the order is by inclusion: a node's parent is the
  // smallest one before it that has all its processors. That puts NUMA nodes inside packages or the other way
  // round, as the machine has it. A NUMA node without processors is the machine's.
  void add_cpu_side() {
    std::vector<Candidate> candidates;
    const bool has_cores = !objects_of(HWLOC_OBJ_CORE).empty();
    for (hwloc_obj_t o : objects_of(HWLOC_OBJ_PACKAGE)) candidates.push_back({o, NodeKind::kPackage});
    for (hwloc_obj_t o : objects_of(HWLOC_OBJ_NUMANODE)) candidates.push_back({o, NodeKind::kNumaNode});
    for (hwloc_obj_t o : objects_of(HWLOC_OBJ_L3CACHE)) candidates.push_back({o, NodeKind::kCache});
    for (hwloc_obj_t o : objects_of(has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU))
      candidates.push_back({o, NodeKind::kCore});
    std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return hwloc_bitmap_weight(a.object->cpuset) > hwloc_bitmap_weight(b.object->cpuset);
    });
    std::vector<hwloc_const_bitmap_t> sets{hwloc_get_root_obj(hwloc_)->cpuset};
    for (const Candidate& candidate : candidates) {
      const hwloc_obj_t object = candidate.object;
      size_t parent = 0;
      for (size_t i = 1; i < sets.size() && !hwloc_bitmap_iszero(object->cpuset); ++i)
        if (out_.nodes[i].kind != candidate.kind && hwloc_bitmap_isincluded(object->cpuset, sets[i])) parent = i;
      TopologyNode& node = out_.nodes[add(candidate.kind, "", static_cast<int32_t>(parent))];
      sets.push_back(object->cpuset);
      node.index = static_cast<int32_t>(object->logical_index);
      node.os_index = object->os_index == HWLOC_UNKNOWN_INDEX ? -1 : static_cast<int32_t>(object->os_index);
      if (node.kind == NodeKind::kPackage && node.os_index < 0) node.os_index = node.index;
      node.name = fmt::format("{} {}", node.kind == NodeKind::kCache ? "L3" : name_of(node.kind), node.index);
      node.cpus = to_cpus(object->cpuset);
      if (node.kind == NodeKind::kNumaNode) node.memory_bytes = object->attr->numanode.local_memory;
      if (node.kind == NodeKind::kCache) node.cache_bytes = object->attr->cache.size;
    }
  }

  void add_memory_links() {
    for (uint32_t i = 1; i < out_.nodes.size(); ++i)
      if (out_.nodes[i].kind == NodeKind::kNumaNode)
        out_.links.push_back({static_cast<uint32_t>(out_.nodes[i].parent), i, LinkKind::kMemoryBus, 0, 0});
  }

  // Between the outermost domains with processors: packages, or NUMA nodes where no package is known. Which
  // pairs are wired directly cannot be read from software, so every pair is linked.
  void add_socket_links() {
    std::vector<uint32_t> domains;
    for (uint32_t i = 1; i < out_.nodes.size(); ++i) {
      const TopologyNode& node = out_.nodes[i];
      const bool is_domain = node.kind == NodeKind::kPackage || node.kind == NodeKind::kNumaNode;
      if (is_domain && node.parent == 0 && !node.cpus.empty()) domains.push_back(i);
    }
    for (size_t a = 0; a < domains.size(); ++a)
      for (size_t b = a + 1; b < domains.size(); ++b)
        out_.links.push_back({domains[a], domains[b], LinkKind::kSocket, 0, 0});
  }

  // The smallest package, NUMA node or machine with all the processors near an I/O object.
  uint32_t nearest_domain(hwloc_obj_t object) const {
    const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(hwloc_, object);
    const std::vector<uint32_t> cpus = to_cpus(near != nullptr ? near->cpuset : nullptr);
    uint32_t best = 0;
    for (uint32_t i = 1; i < out_.nodes.size() && !cpus.empty(); ++i) {
      const TopologyNode& node = out_.nodes[i];
      const bool is_domain = node.kind == NodeKind::kPackage || node.kind == NodeKind::kNumaNode;
      if (is_domain && std::includes(node.cpus.begin(), node.cpus.end(), cpus.begin(), cpus.end()) &&
          node.cpus.size() <= out_.nodes[best].cpus.size())
        best = i;
    }
    return best;
  }

  // The node of the bridge above a device; made, with those above it, when first needed.
  uint32_t bridge_of(hwloc_obj_t bridge) {
    if (bridge == nullptr || bridge->type != HWLOC_OBJ_BRIDGE) return UINT32_MAX;
    for (const auto& [object, node] : bridges_)
      if (object == bridge) return node;
    uint32_t above = bridge_of(bridge->parent);
    if (above == UINT32_MAX) above = nearest_domain(bridge);
    const uint32_t node = add(NodeKind::kPciBridge, "", static_cast<int32_t>(above));
    out_.links.push_back({above, node, LinkKind::kPcie, 0, 0});
    if (bridge->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      out_.nodes[node].pci_bus_id = bus_id(bridge->attr->bridge.upstream.pci);
      out_.links.back().bandwidth_gbps = bridge->attr->bridge.upstream.pci.linkspeed;
    }
    bridges_.emplace_back(bridge, node);
    return node;
  }

  static std::string bus_id(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
  }

  static std::string device_name(hwloc_obj_t device) {
    for (hwloc_obj_t os = device->io_first_child; os != nullptr; os = os->next_sibling)
      if (os->type == HWLOC_OBJ_OS_DEVICE && os->name != nullptr) return os->name;
    return device->name != nullptr ? device->name : "";
  }

  void add_device(hwloc_obj_t device) {
    const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci = device->attr->pcidev;
    const unsigned base_class = pci.class_id >> 8;
    const bool is_network = base_class == kPciBaseNetwork || pci.class_id == kPciInfiniBand;
    if (!is_network && base_class != kPciBaseDisplay) return;
    uint32_t above = bridge_of(device->parent);
    if (above == UINT32_MAX) above = nearest_domain(device);
    const NodeKind kind = is_network ? NodeKind::kNic : NodeKind::kGpu;
    const uint32_t node = add(kind, device_name(device), static_cast<int32_t>(above));
    out_.nodes[node].pci_bus_id = bus_id(pci);
    out_.links.push_back({above, node, LinkKind::kPcie, pci.linkspeed, 0});  // hwloc's linkspeed is in GB/s
  }

  hwloc_topology_t hwloc_;
  Topology& out_;
  int32_t next_index_[8] = {};
  std::vector<std::pair<hwloc_obj_t, uint32_t>> bridges_;
};

Status read_limits(const DetectOptions& options, hwloc_topology_t hwloc, Topology& out) {
  const Bitmap set(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(hwloc)));
  if (options.cpus) {
    const Bitmap given(hwloc_bitmap_alloc());
    for (uint32_t cpu : *options.cpus) hwloc_bitmap_set(given.get(), cpu);
    hwloc_bitmap_and(set.get(), set.get(), given.get());
    if (hwloc_bitmap_iszero(set.get()))
      return {trInvalidArgument, fmt::format("none of the processors {} is in the machine, which has {}",
                                             format_cpus(*options.cpus), format_cpus(out.nodes[0].cpus))};
  } else if (out.this_system) {
    const Bitmap bound(hwloc_bitmap_alloc());
    if (hwloc_get_cpubind(hwloc, bound.get(), HWLOC_CPUBIND_THREAD) == 0 &&
        hwloc_bitmap_intersects(bound.get(), set.get()))
      hwloc_bitmap_and(set.get(), set.get(), bound.get());
  }
  out.limits.cpus = to_cpus(set.get());
  if (out.this_system || !options.root.empty()) {
    const CpuQuota quota = read_cpu_quota(options.root);
    out.limits.quota_cpus = quota.cpus;
    out.limits.quota_source = quota.source;
  }
  count_cores(out);
  return {};
}

}  // namespace

Status detect_topology(const DetectOptions& options, Topology* topology) {
  *topology = {};
  Hwloc hwloc;
  TR_RETURN_IF_ERROR(load(options, hwloc));
  topology->this_system = hwloc_topology_is_thissystem(hwloc.get()) != 0;
  Builder(hwloc.get(), *topology).build();
  return read_limits(options, hwloc.get(), *topology);
}

}  // namespace treering
