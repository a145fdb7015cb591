// SPDX-License-Identifier: Apache-2.0
// How far a device is from processors, by where hwloc says that it hangs.
//
//   0   at a NUMA node or package that has one of the processors
//   1   at another NUMA node of a package that has one; and so on outwards
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "topology/topology.h"

namespace treering {

// From the PCI device with this id ("0000:3b:00.0") to the nearest of these processors (OS indices). -1: it is not known
// where it is.
int32_t distance_to_device(const Topology& topology, const std::string& pci_bus_id, std::span<const uint32_t> cpus);

}  // namespace treering
