// SPDX-License-Identifier: Apache-2.0
// Which ports of verbs devices become a rank's rails: those that are nearest to its cores. No I/O.
//
//   distance 0: mlx5_0, mlx5_1, mlx5_2 (1 Gbit/s)     distance 2: mlx5_3     no distance: rxe0
//               rail 0  rail 1  too slow                          too far                too far
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/verbs/wire.h"

namespace treering::verbs {

inline constexpr int kUnknownDistance = INT_MAX;

struct PortCandidate {
  std::string name;  // "mlx5_0 port 1"
  uint8_t link_layer = 0;
  uint32_t mbps = 0;
  int distance = kUnknownDistance;  // from the rank's cores
  std::string why_not;              // it does not become a rail; else empty
};

// The positions of the ports that become rails, in the order in which they stand. The others that could be used are
// told why they are not.
std::vector<size_t> choose_rails(std::vector<PortCandidate>* ports);

}  // namespace treering::verbs
