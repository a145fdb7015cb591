// SPDX-License-Identifier: Apache-2.0
// Column: one ring or one tree, with the path of every hop and what it loads: a column of the linear programme.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "topology/search/network.h"

namespace treering::search {

enum class Pattern : uint8_t { kRing, kTree };

// An ordered pair of GPUs between which data moves, and the arcs on the way.
struct Hop {
  uint32_t from = 0, to = 0;
  std::vector<uint32_t> arcs;
};

struct ArcLoad {
  uint32_t arc = 0;
  double times = 0;  // how often the column uses the arc
};

using Edge = std::pair<uint32_t, uint32_t>;

struct Column {
  std::vector<Hop> hops;  // a ring: in its order; a tree: each edge up and down, one after the other
  std::vector<ArcLoad> loads;

  std::vector<uint32_t> order() const;  // of a ring
  std::vector<Edge> edges() const;      // of a tree
};

Column ring_column(const Paths& paths, const std::vector<uint32_t>& order);
Column tree_column(const Paths& paths, const std::vector<Edge>& edges);

}  // namespace treering::search
