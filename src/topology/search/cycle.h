// SPDX-License-Identifier: Apache-2.0
// Short Hamiltonian cycles and spanning trees over a matrix of distances, distance[from * count + to], which need not be
// the same both ways. A cycle or tree of kUnreached and more has a pair without a path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "topology/search/column.h"

namespace treering::search {

inline constexpr uint32_t kMaxExactCycle = 16;

double cycle_length(std::span<const double> distance, uint32_t count, const std::vector<uint32_t>& order);

// The shortest one, by dynamic programming over subsets; for at most kMaxExactCycle.
std::vector<uint32_t> shortest_cycle(std::span<const double> distance, uint32_t count);

// A short one, by local search, begun anew `kicks` times from a disturbed cycle.
std::vector<uint32_t> short_cycle(std::span<const double> distance, uint32_t count, size_t kicks);

// No cycle is shorter: what each node must be entered and left for (the first step of an assignment).
double cycle_lower_bound(std::span<const double> distance, uint32_t count);

// The lightest spanning tree, where an edge weighs what both of its directions do together.
std::vector<Edge> lightest_tree(std::span<const double> distance, uint32_t count);

}  // namespace treering::search
