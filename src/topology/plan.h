// SPDX-License-Identifier: Apache-2.0
// Plan: how the ranks of one communicator are laid out on the machines, as the algorithms need it.
//
// It is the only type of this module that src/algorithms sees. It is computed once, by one rank, from every
// rank's location, and distributed, so that it is identical everywhere.
#pragma once

#include <cstdint>
#include <vector>

namespace treering {

struct Plan {
  uint32_t ranks = 1;
  // Order of the ring: ring[i] is the rank at position i; position i sends to position i + 1 (modulo ranks).
  std::vector<uint32_t> ring;
  // For each rank, the group (host, and inside a host the NUMA node) that it lives in.
  std::vector<uint32_t> host;
  std::vector<uint32_t> numa_node;
  // For each host, its leader: the rank that measures and creates shared resources.
  std::vector<uint32_t> leaders;
  // For each rank, the package and the core that it runs on or is expected to; -1 where nothing is known. For
  // reports and placement; no algorithm needs them.
  std::vector<int32_t> package;
  std::vector<int32_t> core;
};

// The plan of `ranks` ranks in numerical order on one host and one NUMA node.
Plan flat_plan(uint32_t ranks);

}  // namespace treering
