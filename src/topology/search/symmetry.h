// SPDX-License-Identifier: Apache-2.0
// Interchangeable GPUs: two that may change names and leave the network as it is, as all behind one NVSwitch. They are a
// class. A linear programme over a network has an optimum that loads alike all arcs that such changes map onto each
// other, so that one row is enough for them: a switch of 72 GPUs has two rows.
#pragma once

#include <cstdint>
#include <vector>

#include "topology/search/network.h"

namespace treering::search {

// The class of each GPU, numbered by first appearance.
std::vector<uint32_t> gpu_classes(const Network& network);

// Arcs -> rows. Without `by_class` each arc has a row of its own.
struct Rows {
  std::vector<uint32_t> of_arc;
  std::vector<double> capacities;  // of each row: the sum of its arcs
};
Rows rows_of(const Network& network, bool by_class);

}  // namespace treering::search
