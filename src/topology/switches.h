// SPDX-License-Identifier: Apache-2.0
// The switches that a host hangs on, so that rings and trees cross each link between them as rarely as they can.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace treering {

inline constexpr size_t kSwitchLevels = 4;

// From the outermost to the host's own: a number for each that is the same for all hosts behind it; 0: no more is
// known.
using SwitchPath = std::array<uint64_t, kSwitchLevels>;

// "spine1.leaf3", the outermost first; of more than kSwitchLevels names the innermost count. A switch is its name and
// those before it, so that leaf1 of two spines are two.
SwitchPath switch_path(const std::string& names);

// What Slurm tells its tasks where it knows the switches (topology/tree; srun(1), SLURM_TOPOLOGY_ADDR) and `host` is
// the node that it speaks of, which it is not where another launcher hands the variables on; else nothing.
std::string switches_from_slurm(const std::string& host);

}  // namespace treering
