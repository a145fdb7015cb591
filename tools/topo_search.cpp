// SPDX-License-Identifier: Apache-2.0
#include "topo_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "topology/graph.h"
#include "topology/import/description.h"
#include "topology/import/words.h"

namespace treering::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string rate_of(const GraphLink& link) {
  if (link.gbps_ab == link.gbps_ba) return fmt::format("{:.4g} GB/s", link.gbps_ab);
  return fmt::format("{:.4g} GB/s, {:.4g} back", link.gbps_ab, link.gbps_ba);
}

std::string describe(const LinkGraph& graph, const GraphLink& link) {
  std::string text = fmt::format("{:<8} {} - {}, {}", name_of(link.kind), graph.nodes[link.a].name,
                                 graph.nodes[link.b].name, rate_of(link));
  if (link.count > 1) text += fmt::format(" (x{})", link.count);
  return fmt::format("{} ({})", text, name_of(link.origin));
}

std::string gpu_number(const LinkGraph& graph, int64_t node) {
  return node < 0 ? "-" : std::to_string(graph.nodes[static_cast<size_t>(node)].number);
}

template <class Nodes>
std::string numbers_of(const LinkGraph& graph, const Nodes& nodes) {
  std::vector<std::string> numbers;
  for (auto node : nodes) numbers.push_back(gpu_number(graph, node));
  return fmt::format("{}", fmt::join(numbers, " "));
}

std::string percent(double part, double whole) { return fmt::format("{:.3g} %", whole > 0 ? 100 * part / whole : 100); }

void print_graph(const std::string& path, const LinkGraph& graph) {
  std::map<NodeKind, size_t> counts;
  for (const GraphNode& node : graph.nodes) ++counts[node.kind];
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : counts) kinds.push_back(fmt::format("{} of kind {}", count, name_of(kind)));
  fmt::print("{}: {}\n\nlinks, each way\n", path, fmt::join(kinds, ", "));
  for (const GraphLink& link : graph.links) fmt::print("  {}\n", describe(graph, link));
}

void print_pattern(const LinkGraph& graph, const SearchedPattern& found, const std::string& name) {
  if (found.channels.empty()) {
    fmt::print("\n{}: none: no path through nodes that are no GPUs joins enough of the GPUs\n", name);
    return;
  }
  fmt::print(
      "\n{}: {:.4g} GB/s, {} of the bound, by {} channel{}; bound {:.4g}, unrounded {:.4g}, lost by rounding {}\n",
      name, found.rounded, percent(found.rounded, found.bound), found.channels.size(),
      found.channels.size() == 1 ? "" : "s", found.bound, found.unrounded,
      percent(found.unrounded - found.rounded, found.unrounded));
  const bool is_ring = !found.channels[0].order.empty();
  fmt::print("  {:>5} {:>8}  {}\n", "share", "GB/s", is_ring ? "order" : "parents");
  for (const SearchedChannel& channel : found.channels)
    fmt::print("  {:>5} {:>8.4g}  {}\n", channel.share, channel.gbps,
               is_ring ? numbers_of(graph, channel.order) : numbers_of(graph, channel.parents));
}

void print_limit(const LinkGraph& graph, const SearchedGraph& found) {
  const TreeLimit& limit = found.limit;
  if (limit.parts.empty()) return;
  fmt::print("\nwhat limits the trees: each has at least {} edge{} between these {} parts\n", limit.parts.size() - 1,
             limit.parts.size() == 2 ? "" : "s", limit.parts.size());
  for (const auto& part : limit.parts) fmt::print("  GPU {}\n", numbers_of(graph, part));
  fmt::print("which use these links {:.3g} time{} at least; the links carry {:.4g} GB/s each way in all\n", limit.times,
             limit.times < 1.005 ? "" : "s", limit.gbps);
  std::map<std::tuple<LinkKind, std::string, std::string>, std::vector<std::string>> alike;
  for (const LimitingLink& limiting : limit.links) {
    const GraphLink& link = graph.links[limiting.link];
    const std::string weight = limiting.weight < 0.995 ? fmt::format(", counted {:.2g} times", limiting.weight) : "";
    alike[{link.kind, rate_of(link), weight}].push_back(
        fmt::format("{} - {}", graph.nodes[link.a].name, graph.nodes[link.b].name));
  }
  for (const auto& [like, links] : alike)
    fmt::print("  {} of {}, {}{}: {}\n", links.size(), name_of(std::get<0>(like)), std::get<1>(like), std::get<2>(like),
               fmt::join(links, ", "));
}

Json to_json(const LinkGraph& graph) {
  Json out{{"nodes", Json::array()}, {"links", Json::array()}};
  for (const GraphNode& node : graph.nodes) {
    out["nodes"].push_back({{"kind", name_of(node.kind)}, {"name", node.name}});
    if (node.number >= 0) out["nodes"].back()["gpu"] = node.number;
  }
  for (const GraphLink& link : graph.links)
    out["links"].push_back({{"a", link.a},
                            {"b", link.b},
                            {"kind", name_of(link.kind)},
                            {"gbps_ab", link.gbps_ab},
                            {"gbps_ba", link.gbps_ba},
                            {"count", link.count},
                            {"origin", name_of(link.origin)}});
  return out;
}

// The nodes on the way, both ends among them.
std::vector<uint32_t> path_of(const LinkGraph& graph, const ChannelHop& hop) {
  std::vector<uint32_t> path{hop.from};
  for (uint32_t link : hop.links)
    path.push_back(graph.links[link].a == path.back() ? graph.links[link].b : graph.links[link].a);
  return path;
}

Json to_json(const LinkGraph& graph, const SearchedPattern& found) {
  Json out{{"gbps", found.rounded},
           {"unrounded_gbps", found.unrounded},
           {"bound_gbps", found.bound},
           {"channels", Json::array()}};
  for (const SearchedChannel& channel : found.channels) {
    Json hops = Json::array();
    for (const ChannelHop& hop : channel.hops)
      hops.push_back({{"from", hop.from}, {"to", hop.to}, {"path", path_of(graph, hop)}, {"links", hop.links}});
    Json one{{"share", channel.share}, {"gbps", channel.gbps}};
    if (channel.parents.empty()) {
      one["order"] = channel.order;
    } else {
      one["parents"] = channel.parents;
    }
    one["hops"] = std::move(hops);
    out["channels"].push_back(std::move(one));
  }
  return out;
}

Json to_json(const TreeLimit& limit) {
  Json links = Json::array();
  for (const LimitingLink& link : limit.links) links.push_back({{"link", link.link}, {"weight", link.weight}});
  return {{"parts", limit.parts}, {"gbps", limit.gbps}, {"times", limit.times}, {"links", std::move(links)}};
}

Status parse_gpus(const std::string& text, SearchOptions* options) {
  std::vector<PartName> parts;
  if (const std::string what = parse_parts(text, &parts); !what.empty()) return {trInvalidArgument, "--gpus: " + what};
  options->gpus.emplace();
  for (const PartName& part : parts) {
    if (part.kind != NodeKind::kGpu)
      return {trInvalidArgument,
              fmt::format("--gpus: {} is no list of GPUs: say numbers, as 0-3,6", quoted_word(text))};
    options->gpus->push_back(static_cast<int32_t>(part.number));
  }
  return {};
}

}  // namespace

Status print_search(const TopoSearch& search) {
  SearchOptions options;
  options.max_channels = search.channels;
  if (!search.gpus.empty()) TR_RETURN_IF_ERROR(parse_gpus(search.gpus, &options));
  LinkGraph graph;
  SearchedGraph found;
  TR_RETURN_IF_ERROR(read_description(search.path, &graph));
  TR_RETURN_IF_ERROR(search_graph(graph, options, &found));
  if (search.json) {
    const Json out{{"graph", to_json(graph)},
                   {"gpus", found.gpus},
                   {"rings", to_json(graph, found.rings)},
                   {"trees", to_json(graph, found.trees)},
                   {"tree_limit", to_json(found.limit)}};
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    return {};
  }
  print_graph(search.path, graph);
  fmt::print("\nbus bandwidth of allreduce among {} GPUs: {}\n", found.gpus.size(), numbers_of(graph, found.gpus));
  print_pattern(graph, found.rings, "rings");
  print_pattern(graph, found.trees, "trees");
  if (search.explain) print_limit(graph, found);
  return {};
}

}  // namespace treering::tools
