// SPDX-License-Identifier: Apache-2.0
// The linear programmes: how much rings, or trees, carry together when each may have any rate.
//
//   max sum(rate of column)      over all Hamiltonian cycles, or spanning trees of hops up and down
//   for each arc: sum(rate x how often the column uses the arc) <= capacity
//
// Columns are generated: the prices of the arcs (the dual solution) say which column is missing. Any prices bound the
// optimum: sum(price x capacity) / (the cheapest column at these prices).
#pragma once

#include <cstddef>
#include <vector>

#include "topology/search/column.h"

namespace treering::search {

struct PackingLimits {
  size_t max_rounds = 2000;  // of pricing
  double gap = 0.004;        // rate and bound may differ by this part of the bound
  bool by_class = false;     // one row for arcs of interchangeable GPUs; `rates` then hold on average over their names
};

struct Packing {
  std::vector<Column> columns;
  std::vector<double> rates;   // of each column, GB/s
  double rate = 0;             // their sum
  double bound = 0;            // no solution is better
  std::vector<double> prices;  // of each arc: those that prove the bound
  size_t rounds = 0;
};

// `known_bound` is an upper bound that the caller has, as by a cut. No columns: there is no ring (no tree).
Packing pack(const Network& network, Pattern pattern, double known_bound, const PackingLimits& limits);

// The best rates of `columns` alone. `prices`, where it is given, are those of the arcs, by which a better column would
// be found.
std::vector<double> best_rates(const Network& network, const std::vector<Column>& columns,
                               std::vector<double>* prices = nullptr);

}  // namespace treering::search
