// SPDX-License-Identifier: Apache-2.0
#include "topology/search/column.h"

#include <algorithm>
#include <map>

namespace treering::search {
namespace {

Hop hop_of(const Paths& paths, uint32_t from, uint32_t to) {
  Hop hop{from, to, {}};
  paths.visit_path(from, to, [&](uint32_t arc) { hop.arcs.push_back(arc); });
  std::reverse(hop.arcs.begin(), hop.arcs.end());
  return hop;
}

Column counted(Column column) {
  std::map<uint32_t, double> times;
  for (const Hop& hop : column.hops)
    for (uint32_t arc : hop.arcs) times[arc] += 1;
  for (const auto& [arc, count] : times) column.loads.push_back({arc, count});
  return column;
}

}  // namespace

std::vector<uint32_t> Column::order() const {
  std::vector<uint32_t> result;
  for (const Hop& hop : hops) result.push_back(hop.from);
  return result;
}

std::vector<Edge> Column::edges() const {
  std::vector<Edge> result;
  for (size_t i = 0; i < hops.size(); i += 2) result.push_back({hops[i].from, hops[i].to});
  return result;
}

Column ring_column(const Paths& paths, const std::vector<uint32_t>& order) {
  Column column;
  for (size_t i = 0; i < order.size(); ++i)
    column.hops.push_back(hop_of(paths, order[i], order[(i + 1) % order.size()]));
  return counted(std::move(column));
}

Column tree_column(const Paths& paths, const std::vector<Edge>& edges) {
  Column column;
  for (const auto& [a, b] : edges) {
    column.hops.push_back(hop_of(paths, a, b));
    column.hops.push_back(hop_of(paths, b, a));
  }
  return counted(std::move(column));
}

}  // namespace treering::search
