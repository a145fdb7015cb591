// SPDX-License-Identifier: Apache-2.0
#include "topology/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "topology/search/cut.h"
#include "topology/search/cycle.h"
#include "topology/search/packing.h"
#include "topology/search/rounding.h"

namespace treering {
namespace {

using search::Column;
using search::Edge;
using search::Network;
using search::Packing;
using search::Pattern;

constexpr double kSameAsCut = 1.005;   // a bound that is due to a cut
constexpr double kCountsFor = 0.02;    // of the largest price: less is what levels prices
constexpr double kMinReached = 1e-12;  // GB/s

class GraphSearch {
 public:
  GraphSearch(const LinkGraph& graph, const SearchOptions& options, std::vector<uint32_t> gpus)
      : graph_(graph), options_(options), gpus_(std::move(gpus)), network_(graph, gpus_) {}

  Status run(SearchedGraph* result) {
    cut_ = least_cut(network_);
    if (cut_.gbps < kMinReached) return unreachable();
    result->gpus = gpus_;
    result->rings = find(Pattern::kRing, 1, nullptr);
    Packing trees;
    const double gpus = static_cast<double>(gpus_.size());
    result->trees = find(Pattern::kTree, 2 * (gpus - 1) / gpus, &trees);
    result->limit = limit_of(trees);
    return {};
  }

 private:
  Status unreachable() const {
    uint32_t outside = 0;
    while (std::binary_search(cut_.side.begin(), cut_.side.end(), outside)) ++outside;
    return {trInvalidArgument,
            fmt::format("no path leads from {} to {}: link them, or select the GPUs to search",
                        graph_.nodes[gpus_[cut_.side.front()]].name, graph_.nodes[gpus_[outside]].name)};
  }

  // `factor`: bus bandwidth for each GB/s of all rings or trees.
  SearchedPattern find(Pattern pattern, double factor, Packing* packed) const {
    search::PackingLimits limits;
    limits.by_class = network_.gpus > search::kMaxExactCycle;
    Packing packing = search::pack(network_, pattern, cut_.gbps, limits);
    const search::Rounded rounded =
        search::round_packing(network_, pattern, packing, options_.max_channels, !limits.by_class);
    SearchedPattern result;
    // By class the programme is a little below what it would be without, where rounding may have found more.
    result.unrounded = std::max(packing.rate, rounded.rate) * factor;
    result.bound = std::max(packing.bound, packing.rate) * factor;
    result.rounded = rounded.rate * factor;
    const double shares = std::accumulate(rounded.channels.begin(), rounded.channels.end(), 0.0,
                                          [](double sum, const auto& channel) { return sum + channel.share; });
    for (const search::SharedColumn& channel : rounded.channels)
      result.channels.push_back(channel_of(pattern, channel, rounded.rate * channel.share / shares));
    if (packed != nullptr) *packed = std::move(packing);
    return result;
  }

  SearchedChannel channel_of(Pattern pattern, const search::SharedColumn& shared, double gbps) const {
    SearchedChannel channel{shared.share, gbps, {}, {}, {}};
    for (const search::Hop& hop : shared.column.hops) {
      ChannelHop out{gpus_[hop.from], gpus_[hop.to], {}};
      for (uint32_t arc : hop.arcs)
        out.links.insert(out.links.end(), network_.arcs[arc].links.begin(), network_.arcs[arc].links.end());
      channel.hops.push_back(std::move(out));
    }
    if (pattern == Pattern::kRing) {
      for (uint32_t gpu : shared.column.order()) channel.order.push_back(gpus_[gpu]);
      return channel;
    }
    for (int32_t parent : parents_of(shared.column.edges()))
      channel.parents.push_back(parent < 0 ? -1 : static_cast<int32_t>(gpus_[static_cast<size_t>(parent)]));
    return channel;
  }

  // From the root that makes the tree least high.
  std::vector<int32_t> parents_of(const std::vector<Edge>& edges) const {
    std::vector<std::vector<uint32_t>> neighbours(gpus_.size());
    for (const auto& [a, b] : edges) neighbours[a].push_back(b), neighbours[b].push_back(a);
    std::vector<int32_t> best;
    uint32_t least = UINT32_MAX;
    for (uint32_t root = 0; root < gpus_.size(); ++root) {
      std::vector<int32_t> parents(gpus_.size(), -1);
      std::vector<uint32_t> queue{root}, depth(gpus_.size(), 0);
      for (size_t i = 0; i < queue.size(); ++i)
        for (uint32_t next : neighbours[queue[i]]) {
          if (parents[queue[i]] == static_cast<int32_t>(next)) continue;
          parents[next] = static_cast<int32_t>(queue[i]);
          depth[next] = depth[queue[i]] + 1;
          queue.push_back(next);
        }
      if (depth[queue.back()] < least) least = depth[queue.back()], best = std::move(parents);
    }
    return best;
  }

  TreeLimit limit_of(const Packing& trees) const {
    if (trees.columns.empty()) return {};
    std::vector<uint32_t> part;
    std::vector<double> prices;
    if (cut_.gbps <= trees.bound * kSameAsCut) {  // the parts are the two sides, and one direction is what counts
      part.assign(gpus_.size(), 1);
      for (uint32_t gpu : cut_.side) part[gpu] = 0;
      prices.assign(network_.arcs.size(), 0);
      for (uint32_t arc : cut_.arcs) prices[arc] = 1;
    } else {
      part = parts_at(network_, trees.prices);
      prices = trees.prices;
    }
    TreeLimit limit;
    limit.parts.resize(*std::max_element(part.begin(), part.end()) + 1);
    for (size_t i = 0; i < gpus_.size(); ++i) limit.parts[part[i]].push_back(gpus_[i]);
    std::map<uint32_t, double> weights, worths;  // of links, both ways together: trees use them alike
    for (uint32_t arc = 0; arc < prices.size(); ++arc) {
      const uint32_t link = slowest_link(network_.arcs[arc]);
      weights[link] += prices[arc];
      worths[link] += prices[arc] * network_.arcs[arc].gbps;
    }
    double largest = 0;
    for (const auto& [link, weight] : weights) largest = std::max(largest, weight);
    for (const auto& [link, weight] : weights) {
      if (weight < kCountsFor * largest) continue;
      limit.links.push_back({link, weight / largest});
      limit.gbps += worths[link] / largest;
    }
    limit.times = limit.gbps / trees.bound;
    return limit;
  }

  uint32_t slowest_link(const search::Arc& arc) const {
    const auto rate = [&](uint32_t link) {  // of two alike the same one for both directions
      return std::pair(std::min(graph_.links[link].gbps_ab, graph_.links[link].gbps_ba), link);
    };
    return *std::min_element(arc.links.begin(), arc.links.end(),
                             [&](uint32_t a, uint32_t b) { return rate(a) < rate(b); });
  }

  const LinkGraph& graph_;
  const SearchOptions& options_;
  const std::vector<uint32_t> gpus_;
  const Network network_;
  search::Cut cut_;
};

}  // namespace

Status search_graph(const LinkGraph& graph, const SearchOptions& options, SearchedGraph* result) {
  if (options.max_channels < 1 || options.max_channels > kMaxSearchedChannels)
    return {trInvalidArgument, fmt::format("{} channels: ask for 1 to {}", options.max_channels, kMaxSearchedChannels)};
  std::vector<uint32_t> gpus = graph.gpus();
  if (options.gpus) {
    for (int32_t number : *options.gpus)
      if (std::none_of(gpus.begin(), gpus.end(), [&](uint32_t node) { return graph.nodes[node].number == number; }))
        return {trInvalidArgument, fmt::format("there is no GPU {} in the graph: name GPUs that it has", number)};
    std::erase_if(gpus, [&](uint32_t node) {
      return std::count(options.gpus->begin(), options.gpus->end(), graph.nodes[node].number) == 0;
    });
  }
  if (gpus.size() < 2)
    return {trInvalidArgument, fmt::format("rings and trees need at least 2 GPUs, and there {} {}: describe more",
                                           gpus.size() == 1 ? "is" : "are", gpus.size())};
  if (gpus.size() > kMaxSearchedGpus)
    return {trInvalidArgument, fmt::format("{} GPUs are more than the {} that are searched: select some of them",
                                           gpus.size(), kMaxSearchedGpus)};
  return GraphSearch(graph, options, std::move(gpus)).run(result);
}

}  // namespace treering
