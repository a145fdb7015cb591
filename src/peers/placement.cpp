// SPDX-License-Identifier: Apache-2.0
#include "peers/placement.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/log.h"
#include "topology/detect.h"
#include "topology/distance.h"

namespace treering {
namespace {

// Read once a process: it takes milliseconds, and the machine does not change. Devices have no part in plans.
struct MachineView {
  Topology topology;
  bool valid = false;
};

const MachineView& machine_view() {
  static const MachineView* view = [] {
    auto* made = new MachineView;
    DetectOptions options;
    options.devices = false;
    Status status = detect_topology(options, &made->topology);
    made->valid = status.ok();
    if (!status.ok()) log_line(LogLevel::kWarn, "the machine's topology is unknown: " + status.message());
    return made;
  }();
  return *view;
}

template <typename T>
void append(std::string* bytes, const std::vector<T>& values) {
  auto count = static_cast<uint32_t>(values.size());
  bytes->append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
bool take(const std::string& bytes, size_t* at, std::vector<T>* values) {
  uint32_t count = 0;
  if (bytes.size() - *at < sizeof count) return false;
  std::memcpy(&count, bytes.data() + *at, sizeof count);
  *at += sizeof count;
  if ((bytes.size() - *at) / sizeof(T) < count) return false;
  values->resize(count);
  std::memcpy(values->data(), bytes.data() + *at, count * sizeof(T));
  *at += count * sizeof(T);
  return true;
}

}  // namespace

Location locate_rank(uint32_t* quota_cpus) {
  Location location;
  location.host = host_identity();
  location.pid = getpid();
  *quota_cpus = 0;
  const MachineView& view = machine_view();
  if (!view.valid) return location;
  *quota_cpus = static_cast<uint32_t>(std::ceil(view.topology.limits.quota_cpus));
  if (Status status = locate_this_thread(view.topology, &location); !status.ok())
    log_line(LogLevel::kInfo, "the rank's place on the machine is unknown: " + status.message());
  return location;
}

int32_t distance_of_device(const std::string& pci_bus_id) {
  if (pci_bus_id.empty()) return -1;
  static const Topology* const topology = [] {  // read once a process: with devices it takes more time
    auto* made = new Topology;
    if (const Status status = detect_topology({}, made); !status.ok())
      log_line(LogLevel::kInfo, "where devices are on the machine is unknown: " + status.message());
    return made;
  }();
  std::vector<uint32_t> cpus;
  return bound_cpus(&cpus).ok() ? distance_to_device(*topology, pci_bus_id, cpus) : -1;
}

bool has_numa_nodes() {
  const auto& nodes = machine_view().topology.nodes;
  return std::count_if(nodes.begin(), nodes.end(), [](const auto& node) { return node.kind == NodeKind::kNumaNode; }) >
         1;
}

Plan plan_for(const std::vector<Location>& locations) {
  const MachineView& view = machine_view();
  return make_plan(locations, view.valid ? view.topology : Topology{});
}

std::string pack_plan(const Plan& plan) {
  std::string bytes;
  append(&bytes, plan.ring);
  append(&bytes, plan.host);
  append(&bytes, plan.numa_node);
  append(&bytes, plan.leaders);
  append(&bytes, plan.package);
  append(&bytes, plan.core);
  return bytes;
}

Status unpack_plan(const std::string& bytes, uint32_t ranks, Plan* plan) {
  size_t at = 0;
  plan->ranks = ranks;
  if (take(bytes, &at, &plan->ring) && take(bytes, &at, &plan->host) && take(bytes, &at, &plan->numa_node) &&
      take(bytes, &at, &plan->leaders) && take(bytes, &at, &plan->package) && take(bytes, &at, &plan->core) &&
      at == bytes.size() && plan->ring.size() == ranks)
    return {};
  return {trInternalError, "a malformed plan was received from rank 0"};
}

}  // namespace treering
