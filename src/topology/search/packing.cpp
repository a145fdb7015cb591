// SPDX-License-Identifier: Apache-2.0
#include "topology/search/packing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "topology/search/balance.h"
#include "topology/search/cycle.h"
#include "topology/search/simplex.h"
#include "topology/search/symmetry.h"

namespace treering::search {
namespace {

constexpr size_t kBeginWith = 6;             // columns
constexpr size_t kBeginPasses = 1;           // of their balance
constexpr double kInertia = 0.7;             // the part of the prices that stays
constexpr double kImproves = 1e-7;           // of a column's price of 1
constexpr uint32_t kMaxExactEachRound = 10;  // GPUs
constexpr size_t kKicksOfARound = 6;
constexpr size_t kKicksAtLast = 150;  // where no cycle was found that improves

double cost_of(const Column& column, const std::vector<double>& prices) {
  double sum = 0;
  for (const ArcLoad& load : column.loads) sum += load.times * prices[load.arc];
  return sum;
}

class Generation {
 public:
  Generation(const Network& network, Pattern pattern, double known_bound, const PackingLimits& limits)
      : network_(network),
        pattern_(pattern),
        limits_(limits),
        rows_(rows_of(network, limits.by_class)),
        programme_(rows_.capacities),
        paths_(network) {
    result_.bound = known_bound;
  }

  Packing run() {
    for (Column& column : balanced_columns(network_, pattern_, kBeginWith, result_.bound / kBeginWith, kBeginPasses))
      add(std::move(column));
    if (result_.columns.empty()) {  // of rings, there is none up to kMaxExactCycle GPUs; above, none was found
      if (pattern_ == Pattern::kTree || network_.gpus <= kMaxExactCycle) result_.bound = 0;
      return std::move(result_);
    }
    centre_ = evenly_priced();
    size_t in_vain = 0;  // rounds since the last one that gave a better column
    for (; result_.rounds < limits_.max_rounds; ++result_.rounds) {
      programme_.solve();
      const double value = programme_.value();
      if (value >= result_.bound * (1 - limits_.gap)) break;
      const double inertia = std::max(0.0, 1 - (1 - kInertia) * static_cast<double>(in_vain + 1));
      const std::vector<double> duals = dual_prices();
      std::vector<double> prices = duals;
      for (size_t arc = 0; arc < prices.size(); ++arc)
        prices[arc] = (1 - inertia) * duals[arc] / value + inertia * centre_[arc];
      in_vain = generate(prices, duals) ? 0 : in_vain + 1;
      if (in_vain > 0 && inertia == 0) break;  // the optimum, as far as the search for cycles goes
    }
    programme_.solve();
    result_.rates = programme_.amounts();
    result_.rate = programme_.value();
    result_.prices = centre_;
    return std::move(result_);
  }

 private:
  std::vector<double> dual_prices() const {
    const std::vector<double> of_row = programme_.prices();
    std::vector<double> result;
    for (uint32_t row : rows_.of_arc) result.push_back(of_row[row]);
    return result;
  }

  std::vector<double> evenly_priced() const {
    std::vector<double> result;
    for (const Arc& arc : network_.arcs) result.push_back(1 / (static_cast<double>(network_.arcs.size()) * arc.gbps));
    return result;
  }

  void add(Column column) {
    std::map<uint32_t, double> of_row;
    for (const ArcLoad& load : column.loads) of_row[rows_.of_arc[load.arc]] += load.times;
    std::vector<RowEntry> entries;
    for (const auto& [row, times] : of_row) entries.push_back({row, times});
    programme_.add_column(std::move(entries));
    result_.columns.push_back(std::move(column));
  }

  // Columns that are cheap at `prices` (as centre_), and the bound that these prices prove. Whether one improves the solution, whose
  // prices are `duals`.
  bool generate(const std::vector<double>& prices, const std::vector<double>& duals) {
    paths_.find(prices);
    const std::vector<double>& distances = paths_.distances();
    const uint32_t gpus = network_.gpus;
    if (pattern_ == Pattern::kTree) {
      Column tree = tree_column(paths_, lightest_tree(distances, gpus));
      prove(prices, cost_of(tree, prices));
      return add_if_better(std::move(tree), duals);
    }
    const bool exact_at_once = gpus <= kMaxExactEachRound;
    bool improved =
        add_ring(exact_at_once ? shortest_cycle(distances, gpus) : short_cycle(distances, gpus, kKicksOfARound), duals);
    if (exact_at_once || (!improved && gpus <= kMaxExactCycle)) {
      const std::vector<uint32_t> shortest = shortest_cycle(distances, gpus);
      prove(prices, cycle_length(distances, gpus, shortest));
      if (!improved) improved = add_ring(shortest, duals);
    } else if (gpus > kMaxExactCycle) {
      prove(prices, cycle_lower_bound(distances, gpus));
      if (!improved) improved = add_ring(short_cycle(distances, gpus, kKicksAtLast), duals);
    }
    return improved;
  }

  bool add_ring(std::vector<uint32_t> order, const std::vector<double>& duals) {
    if (cycle_length(paths_.distances(), network_.gpus, order) >= kUnreached) return false;
    const bool improved = add_if_better(ring_column(paths_, order), duals);
    std::reverse(order.begin(), order.end());  // links that are the same both ways are then filled both ways
    if (cycle_length(paths_.distances(), network_.gpus, order) >= kUnreached) return improved;
    return add_if_better(ring_column(paths_, order), duals) || improved;
  }

  bool add_if_better(Column column, const std::vector<double>& duals) {
    if (cost_of(column, duals) >= 1 - kImproves) return false;
    add(std::move(column));
    return true;
  }

  void prove(const std::vector<double>& prices, double cheapest) {
    if (cheapest <= 0) return;
    if (1 / cheapest >= proved_) return;
    proved_ = 1 / cheapest;
    result_.bound = std::min(result_.bound, proved_);
    centre_ = prices;
  }

  const Network& network_;
  const Pattern pattern_;
  const PackingLimits limits_;
  const Rows rows_;
  PackingProgramme programme_;
  Paths paths_;
  Packing
      result_;  // The dual solution jumps from round to round. Prices that lie between it and those with the best bound so far give
  // better columns, and the bound sooner.
  std::vector<double> centre_;                               // of all arcs together: sum(price * capacity) = 1
  double proved_ = std::numeric_limits<double>::infinity();  // the bound that they prove
};

}  // namespace

Packing pack(const Network& network, Pattern pattern, double known_bound, const PackingLimits& limits) {
  return Generation(network, pattern, known_bound, limits).run();
}

std::vector<double> best_rates(const Network& network, const std::vector<Column>& columns,
                               std::vector<double>* prices) {
  PackingProgramme programme(network.capacities());
  for (const Column& column : columns) {
    std::vector<RowEntry> entries;
    for (const ArcLoad& load : column.loads) entries.push_back({load.arc, load.times});
    programme.add_column(std::move(entries));
  }
  programme.solve();
  if (prices != nullptr) *prices = programme.prices();
  return programme.amounts();
}

}  // namespace treering::search
