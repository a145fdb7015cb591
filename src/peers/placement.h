// SPDX-License-Identifier: Apache-2.0
// Placement: where this process's ranks run on the machine, and the plan that follows, agreed by all ranks.
#pragma once

#include <string>
#include <vector>

#include "topology/location.h"

namespace treering {

// Where the calling thread runs; all unknown (-1) where the machine cannot be read. Also the number of processors that
// the cgroup's quota grants, 0 = no limit.
Location locate_rank(uint32_t* quota_cpus);

// How far the PCI device with this id is from the calling thread's processors (topology/distance.h); -1: not known.
int32_t distance_of_device(const std::string& pci_bus_id);

// Whether it makes a difference on which NUMA node memory lies.
bool has_numa_nodes();

// The plan for ranks at these locations, by the calling process's view of the machine.
Plan plan_for(const std::vector<Location>& locations);

// A plan travels from the rank that made it to the others.
std::string pack_plan(const Plan& plan);
Status unpack_plan(const std::string& bytes, uint32_t ranks, Plan* plan);

}  // namespace treering
