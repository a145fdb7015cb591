// SPDX-License-Identifier: Apache-2.0
#include "topology/search/rounding.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "topology/search/balance.h"

namespace treering::search {
namespace {

constexpr double kAsGood = 0.999;      // of the rate, for fewer channels or smaller shares
constexpr uint32_t kMaxExacting = 24;  // GPUs up to which no more than that may be lost
constexpr double kGoodForMany = 0.98;  // of the rate: ends the search above
constexpr size_t kPasses = 3;
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
  return best;
}

}  // namespace treering::search
