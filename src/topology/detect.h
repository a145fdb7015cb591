// SPDX-License-Identifier: Apache-2.0
// Detection: this machine, or a description of one, as a Topology. Needs no privileges and runs in
// milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "topology/topology.h"

namespace treering {

struct DetectOptions {
  std::string synthetic;  // hwloc's words, such as "package:2 numa:1 core:4 pu:1"; else HWLOC_SYNTHETIC is taken
  std::string xml_path;   // a machine captured with lstopo
  std::optional<std::vector<uint32_t>> cpus;  // in place of the inherited affinity, by OS index
  bool devices = true;                        // whether PCI devices are read, which takes milliseconds and a lock
  std::string root;                           // where /proc and /sys/fs/cgroup are looked for (tests)
};

// Fills in `topology`. A description is taken as it is: neither this process's affinity nor its cgroup limits
// it.
Status detect_topology(const DetectOptions& options, Topology* topology);

}  // namespace treering
