// SPDX-License-Identifier: Apache-2.0
#include "topology/place.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace treering {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
struct FreeNodes {
  void operator()(hwloc_bitmap_t b) const { hwloc_bitmap_free(b); }
};

// The machine as hwloc needs it for binding, loaded once without devices and caches.
hwloc_topology_t machine() {
  static const std::unique_ptr<hwloc_topology, DestroyTopology> loaded = [] {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) return std::unique_ptr<hwloc_topology, DestroyTopology>();
    std::unique_ptr<hwloc_topology, DestroyTopology> topology(raw);
    hwloc_topology_set_all_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
    if (hwloc_topology_load(raw) != 0) topology.reset();
    return topology;
  }();
  return loaded.get();
}

}  // namespace

Status bind_memory(void* memory, size_t bytes, int32_t numa_node) {
  if (numa_node < 0 || bytes == 0) return {};
  const hwloc_topology_t topology = machine();
  if (topology == nullptr) return {trSystemError, "memory cannot be bound: hwloc cannot read the machine's topology"};
  if (hwloc_get_numanode_obj_by_os_index(topology, static_cast<unsigned>(numa_node)) == nullptr)
    return {trInvalidArgument,
            fmt::format("memory cannot be bound to NUMA node {}: this machine has no such node", numa_node)};
  const std::unique_ptr<hwloc_bitmap_s, FreeNodes> nodes(hwloc_bitmap_alloc());
  hwloc_bitmap_only(nodes.get(), static_cast<unsigned>(numa_node));
  if (hwloc_set_area_membind(topology, memory, bytes, nodes.get(), HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) != 0)
    return {trSystemError,
            fmt::format("{} bytes cannot be bound to NUMA node {}: {}", bytes, numa_node, std::strerror(errno))};
  return {};
}

Status place_memory(void* memory, size_t bytes, int32_t numa_node) {
  Status bound = bind_memory(memory, bytes, numa_node);
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* first = static_cast<volatile unsigned char*>(memory);
  for (size_t offset = 0; offset < bytes; offset += page_bytes) first[offset] = first[offset];
  if (bytes > 0) first[bytes - 1] = first[bytes - 1];
  return bound;
}

}  // namespace treering
