// SPDX-License-Identifier: Apache-2.0
#include "topology/search/rounding.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "topology/search/balance.h"
#include "topology/search/cycle.h"

namespace treering::search {
namespace {

constexpr double kAsGood = 0.999;      // of the rate, for fewer channels or smaller shares
constexpr uint32_t kMaxExacting = 24;  // GPUs up to which no more than that may be lost
constexpr double kGoodForMany = 0.98;  // of the rate: ends the search above
constexpr size_t kPasses = 3;
constexpr size_t kMaxExchanges = 60;
constexpr size_t kAttempts = 4;  // columns to put in, and places for each
constexpr size_t kKicksOfAnExchange = 3;
constexpr double kGains = 1 + 1e-6;
constexpr double kNothing = 1e-7;  // of a rate that is left out

// What the columns carry with these shares.
double rate_of(const Network& network, const std::vector<Column>& columns, const std::vector<uint32_t>& shares) {
  std::vector<double> used(network.arcs.size(), 0);
  for (size_t i = 0; i < columns.size(); ++i)
    for (const ArcLoad& load : columns[i].loads) used[load.arc] += load.times * shares[i];
  double fullest = 0;
  for (size_t arc = 0; arc < used.size(); ++arc) fullest = std::max(fullest, used[arc] / network.arcs[arc].gbps);
  const uint32_t sum = std::accumulate(shares.begin(), shares.end(), 0u);
  return fullest > 0 ? sum / fullest : 0;
}

// The smallest shares that lose next to nothing against the best that there are up to kMaxShare.
Rounded with_shares(const Network& network, const std::vector<Column>& columns, const std::vector<double>& rates) {
  const double largest = *std::max_element(rates.begin(), rates.end());
  std::vector<uint32_t> best_shares;
  double best = 0;
  for (uint32_t most = 1; most <= kMaxShare; ++most) {
    std::vector<uint32_t> shares;
    for (double rate : rates) shares.push_back(static_cast<uint32_t>(std::lround(rate / largest * most)));
    if (const double now = rate_of(network, columns, shares); now * kAsGood > best) best = now, best_shares = shares;
  }
  Rounded result;
  result.rate = best;
  const uint32_t common = std::accumulate(best_shares.begin(), best_shares.end(), 0u,
                                          [](uint32_t a, uint32_t b) { return std::gcd(a, b); });
  for (size_t i = 0; i < columns.size(); ++i)
    if (best_shares[i] > 0) result.channels.push_back({columns[i], best_shares[i] / common});
  return result;
}

double sum_of(const std::vector<double>& rates) { return std::accumulate(rates.begin(), rates.end(), 0.0); }

// Puts columns that are cheap at the others' prices in place of those with the least rates, while that gains something.
class Exchange {
 public:
  Exchange(const Network& network, Pattern pattern, std::vector<Column> columns, double enough)
      : network_(network), pattern_(pattern), paths_(network), columns_(std::move(columns)), enough_(enough) {}

  std::vector<Column> run(std::vector<double>* rates) {
    *rates = best_rates(network_, columns_, &prices_);
    for (size_t round = 0; round < kMaxExchanges && sum_of(*rates) < enough_; ++round)
      if (!exchange_one(rates, round)) break;
    return std::move(columns_);
  }

 private:
  // Prices of nothing are lifted, by more in each attempt, so that the attempts differ.
  Column cheap_column(size_t attempt) {
    std::vector<double> prices = prices_;
    const double lift = 1e-3 * std::pow(4.0, static_cast<double>(attempt));
    for (size_t arc = 0; arc < prices.size(); ++arc)
      prices[arc] += lift / (static_cast<double>(prices.size()) * network_.arcs[arc].gbps) * enough_;
    paths_.find(prices);
    const std::vector<double>& distances = paths_.distances();
    if (pattern_ == Pattern::kTree) return tree_column(paths_, lightest_tree(distances, network_.gpus));
    const std::vector<uint32_t> order = short_cycle(distances, network_.gpus, kKicksOfAnExchange);
    if (cycle_length(distances, network_.gpus, order) >= kUnreached) return {};
    return ring_column(paths_, order);
  }

  bool exchange_one(std::vector<double>* rates, size_t round) {
    std::vector<size_t> by_rate(rates->size());
    std::iota(by_rate.begin(), by_rate.end(), size_t{0});
    std::stable_sort(by_rate.begin(), by_rate.end(), [&](size_t a, size_t b) { return (*rates)[a] < (*rates)[b]; });
    for (size_t attempt = 0; attempt < kAttempts; ++attempt) {
      Column column = cheap_column(attempt + round % 2);
      if (column.hops.empty()) continue;
      for (size_t i = 0; i < std::min(kAttempts, by_rate.size()); ++i) {
        std::swap(columns_[by_rate[i]], column);
        std::vector<double> prices, now = best_rates(network_, columns_, &prices);
        if (sum_of(now) > sum_of(*rates) * kGains) {
          *rates = std::move(now), prices_ = std::move(prices);
          return true;
        }
        std::swap(columns_[by_rate[i]], column);
      }
    }
    return false;
  }

  const Network& network_;
  const Pattern pattern_;
  Paths paths_;
  std::vector<Column> columns_;
  const double enough_;
  std::vector<double> prices_;
};

// Drops columns with the least rates until `most` are left, and gives the others the best rates that they can have.
Rounded fewer(const Network& network, std::vector<Column> columns, std::vector<double> rates, uint32_t most) {
  for (;;) {
    const double least = kNothing * *std::max_element(rates.begin(), rates.end());
    std::vector<size_t> kept;
    for (size_t i = 0; i < rates.size(); ++i)
      if (rates[i] > least) kept.push_back(i);
    const bool enough = kept.size() <= most;
    std::stable_sort(kept.begin(), kept.end(), [&](size_t a, size_t b) { return rates[a] > rates[b]; });
    // A quarter of what is too many at a time: the others' rates show then which are needed.
    if (!enough) kept.resize(most + (kept.size() - most) * 3 / 4);
    std::vector<Column> columns_left;
    std::vector<double> rates_left;
    for (size_t i : kept) columns_left.push_back(std::move(columns[i])), rates_left.push_back(rates[i]);
    columns = std::move(columns_left);
    if (enough) return with_shares(network, columns, rates_left);
    rates = best_rates(network, columns);
  }
}

}  // namespace

Rounded round_packing(const Network& network, Pattern pattern, const Packing& packing, uint32_t max_channels,
                      bool columns_are_real) {
  Rounded best;
  if (packing.columns.empty()) return best;
  const auto take = [&](Rounded found) {
    const bool fewer_channels = found.channels.size() < best.channels.size() && found.rate > best.rate * kAsGood;
    if (fewer_channels || found.rate * kAsGood > best.rate) best = std::move(found);
  };
  if (columns_are_real) take(fewer(network, packing.columns, packing.rates, max_channels));
  const double enough = packing.rate * (network.gpus > kMaxExacting ? kGoodForMany : kAsGood);
  for (uint32_t count = 1; count <= max_channels && best.rate < enough; ++count) {
    const std::vector<Column> columns = balanced_columns(network, pattern, count, packing.rate / count, kPasses);
    if (!columns.empty()) take(fewer(network, columns, best_rates(network, columns), max_channels));
  }
  if (!best.channels.empty() && best.rate < enough && network.gpus <= kMaxExacting) {
    std::vector<Column> columns;
    for (const SharedColumn& channel : best.channels) columns.push_back(channel.column);
    // Where there is room for more, a second one of each makes it: what is put in may differ.
    for (size_t i = 0; columns.size() < max_channels; ++i) columns.push_back(Column(columns[i]));
    std::vector<double> rates;
    columns = Exchange(network, pattern, std::move(columns), packing.rate).run(&rates);
    take(fewer(network, std::move(columns), std::move(rates), max_channels));
  }
  return best;
}

}  // namespace treering::search
