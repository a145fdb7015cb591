// SPDX-License-Identifier: Apache-2.0
// Cuts: what separates GPUs, and so limits rings and trees.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/search/network.h"

namespace treering::search {

// Every ring, and every tree in each direction, crosses it at least once.
struct Cut {
  std::vector<uint32_t> side;  // the GPUs on one side, ascending; at least one is not there
  std::vector<uint32_t> arcs;  // from there to the other side
  double gbps = 0;             // their sum
};

// The one with the least capacity in one direction; 0 where a GPU cannot reach another one. For at least two GPUs.
Cut least_cut(const Network& network);

// GPUs between which paths cost next to nothing at `prices` are one part: the parts that a bound is due to. Numbered by
// their first GPU.
std::vector<uint32_t> parts_at(const Network& network, const std::vector<double>& prices);

}  // namespace treering::search
