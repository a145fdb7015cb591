// SPDX-License-Identifier: Apache-2.0
// treering-topo: prints what the library finds on a machine, and how it would lay out ranks on it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "arguments.h"
#include "communicator/needs.h"
#include "core/config.h"
#include "topo_search.h"
#include "topology/detect.h"
#include "topology/location.h"
#include "topology/topology.h"

namespace {

using treering::CorePlace;
using treering::Location;
using treering::name_of;
using treering::NodeKind;
using treering::Plan;
using treering::Topology;
using treering::TopologyLink;
using treering::TopologyNode;
using treering::TransportNeeds;
using Json = nlohmann::ordered_json;

constexpr int kBadInput = 2;
constexpr int kFailure = 1;

std::string format_bytes(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, units[unit]);
}

std::string describe(const TopologyNode& node) {
  std::string text = node.name;
  if (node.memory_bytes != 0) text += ", " + format_bytes(node.memory_bytes);
  if (node.cache_bytes != 0) text += ", " + format_bytes(node.cache_bytes);
  if (!node.pci_bus_id.empty()) text += ", PCI " + node.pci_bus_id;
  if (node.kind == NodeKind::kGpu || node.kind == NodeKind::kNic) text = std::string(name_of(node.kind)) + " " + text;
  if (!node.cpus.empty()) text += " (cpu " + treering::format_cpus(node.cpus) + ")";
  return text;
}

void print_tree(const Topology& topology, int32_t index, const std::string& indent) {
  std::vector<int32_t> children;
  for (size_t i = 0; i < topology.nodes.size(); ++i)
    if (topology.nodes[i].parent == index) children.push_back(static_cast<int32_t>(i));
  for (int32_t child : children) {
    const bool last = child == children.back();
    fmt::print("{}{}{}\n", indent, last ? "`- " : "+- ", describe(topology.nodes[static_cast<size_t>(child)]));
    print_tree(topology, child, indent + (last ? "   " : "|  "));
  }
}

std::string explain_cores(const Topology& topology) {
  const treering::CpuLimits& limits = topology.limits;
  std::string why = fmt::format("the affinity has {} of the machine's {} cores (cpu {})", limits.affinity_cores,
                                limits.machine_cores, treering::format_cpus(limits.cpus));
  if (limits.quota_cpus > 0) {
    why += fmt::format("; the cgroup grants {:.4g} cores of time ({})", limits.quota_cpus, limits.quota_source);
  } else {
    why += topology.this_system ? "; no cgroup quota" : "; a description, so no cgroup quota";
  }
  return why;
}

void print_links(const Topology& topology) {
  fmt::print("\nlinks\n");
  for (const TopologyLink& link : topology.links) {
    std::string text =
        fmt::format("  {:<8} {} - {}", name_of(link.kind), topology.nodes[link.a].name, topology.nodes[link.b].name);
    if (link.bandwidth_gbps > 0) text += fmt::format(", {:.3g} GB/s", link.bandwidth_gbps);
    if (link.latency_us > 0) text += fmt::format(", {:.3g} us", link.latency_us);
    fmt::print("{}\n", text);
  }
  if (topology.links.empty()) fmt::print("  none\n");
}

std::string known(int32_t number) { return number < 0 ? "?" : std::to_string(number); }

void print_plan(const Plan& plan) {
  fmt::print("\nplan of {} ranks\n  ring order: {}\n  leaders: {}\n", plan.ranks, fmt::join(plan.ring, " "),
             fmt::join(plan.leaders, " "));
  fmt::print("  {:>6} {:>8} {:>6} {:>6}\n", "rank", "package", "numa", "core");
  for (uint32_t rank = 0; rank < plan.ranks; ++rank)
    fmt::print("  {:>6} {:>8} {:>6} {:>6}\n", rank, known(plan.package[rank]), plan.numa_node[rank],
               known(plan.core[rank]));
}

Json to_json(const Topology& topology) {
  Json out;
  const treering::CpuLimits& limits = topology.limits;
  out["this_system"] = topology.this_system;
  out["limits"] = {{"cpus", limits.cpus},
                   {"machine_cores", limits.machine_cores},
                   {"affinity_cores", limits.affinity_cores},
                   {"quota_cpus", limits.quota_cpus},
                   {"quota_source", limits.quota_source},
                   {"cores_available", limits.cores_available}};
  out["nodes"] = Json::array();
  for (const TopologyNode& node : topology.nodes)
    out["nodes"].push_back({{"kind", name_of(node.kind)},
                            {"name", node.name},
                            {"parent", node.parent},
                            {"index", node.index},
                            {"os_index", node.os_index},
                            {"cpus", node.cpus},
                            {"memory_bytes", node.memory_bytes},
                            {"cache_bytes", node.cache_bytes},
                            {"pci_bus_id", node.pci_bus_id}});
  out["links"] = Json::array();
  for (const TopologyLink& link : topology.links)
    out["links"].push_back({{"a", link.a},
                            {"b", link.b},
                            {"kind", name_of(link.kind)},
                            {"bandwidth_gbps", link.bandwidth_gbps},
                            {"latency_us", link.latency_us}});
  return out;
}

Json to_json(const Plan& plan) {
  return {{"ranks", plan.ranks}, {"ring", plan.ring},           {"leaders", plan.leaders}, {"host", plan.host},
          {"core", plan.core},   {"numa_node", plan.numa_node}, {"package", plan.package}};
}

// Ranks that are started without a binding: the layout that the library assumes for them.
Plan plan_of_unbound(const Topology& topology, uint32_t ranks) {
  const std::vector<Location> locations(ranks, treering::locate(topology, topology.limits.cpus, 0, 0));
  return treering::make_plan(locations, topology);
}

std::vector<TransportNeeds> needs_of(const Topology& topology, uint32_t ranks, uint32_t rails) {
  uint64_t cache_bytes = 0;
  if (!topology.this_system)
    for (const TopologyNode& node : topology.nodes) cache_bytes = std::max(cache_bytes, node.cache_bytes);
  return treering::transport_needs(ranks, cache_bytes, rails);
}

void print_needs(const TransportNeeds& needs, uint32_t ranks) {
  fmt::print(
      "\nover {} between hosts, by {} rail{}, with the default TREERING_STAGING and TREERING_CHANNELS (each rank)\n"
      "  queue pairs: {}; after an alltoall {}\n"
      "  locked memory: {}; after an alltoall {} ({} of staging memory, {} for each peer)\n",
      needs.transport, needs.locked.rails, needs.locked.rails == 1 ? "" : "s", needs.locked.peers * needs.locked.rails,
      (ranks - 1) * needs.locked.rails, format_bytes(needs.locked.bytes()),
      format_bytes(needs.locked.staging_bytes + (ranks - 1) * needs.locked.peer_bytes),
      format_bytes(needs.locked.staging_bytes), format_bytes(needs.locked.peer_bytes));
}

Json to_json(const TransportNeeds& needs) {
  return {{"rails", needs.locked.rails},
          {"queue_pairs", needs.locked.peers * needs.locked.rails},
          {"locked_bytes", needs.locked.bytes()},
          {"staging_bytes", needs.locked.staging_bytes},
          {"peer_bytes", needs.locked.peer_bytes}};
}

CLI::Validator a_number_of_ranks() {
  return CLI::Validator(
      [](const std::string& text) {
        uint32_t ranks = 0;
        if (CLI::detail::lexical_cast(text, ranks) && ranks >= 1 && ranks <= treering::kMaxRanks) return std::string();
        return fmt::format("value \"{}\" is not a whole number from 1 to {}, the most that a communicator has", text,
                           treering::kMaxRanks);
      },
      "");
}

int run(int argc, char** argv) {
  CLI::App app{"Prints the topology of this machine, or of a described one, as treering sees it.", "treering-topo"};
  app.set_version_flag("--version", "treering-topo " TREERING_VERSION_STRING);
  treering::DetectOptions options;
  uint32_t ranks = 0, rails = 1;
  bool json = false;
  auto* synthetic =
      app.add_option("--synthetic", options.synthetic, "a machine in hwloc's words: 'package:2 numa:1 core:4 pu:1'");
  app.add_option("--xml", options.xml_path, "a machine captured with lstopo")->excludes(synthetic);
  auto* laid_out = app.add_option("--ranks", ranks, "also lay out this many unbound ranks")->check(a_number_of_ranks());
  app.add_option("--rails", rails, "of these ranks over InfiniBand or RoCE: network ports that each uses (1 to 4)")
      ->check(CLI::Range(1u, 4u))
      ->needs(laid_out);
  app.add_flag("--json", json, "machine-readable output");
  treering::tools::TopoSearch search;
  auto* import = app.add_option("--import", search.path, "search rings and trees of a machine described by hand");
  import->excludes(synthetic)->excludes("--xml")->excludes(laid_out);
  app.add_option("--gpus", search.gpus, "search these GPUs alone: 0-3,6")->needs(import);
  app.add_option("--channels", search.channels, "round to at most so many channels (1 to 32; default 16)")
      ->check(CLI::Range(1u, treering::kMaxSearchedChannels))
      ->needs(import);
  app.add_flag("--explain", search.explain, "say what limits the trees")->needs(import);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return treering::tools::refuse(app, error, treering::tools::text_of(app, error));
  }
  if (import->count() > 0) {
    search.json = json;
    const treering::Status status = print_search(search);
    if (!status.ok()) fmt::print(stderr, "error: {}\n", status.message());
    return status.ok() ? 0 : kBadInput;
  }
  Topology topology;
  if (const treering::Status status = treering::detect_topology(options, &topology); !status.ok()) {
    fmt::print(stderr, "error: {}\n", status.message());
    return status.code() == trInvalidArgument ? kBadInput : kFailure;
  }
  if (json) {
    Json out = to_json(topology);
    if (ranks > 0) out["plan"] = to_json(plan_of_unbound(topology, ranks));
    if (ranks > 1)
      for (const TransportNeeds& needs : needs_of(topology, ranks, rails)) out[needs.transport] = to_json(needs);
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
  }
  fmt::print("{}\n", describe(topology.nodes[0]));
  print_tree(topology, 0, "");
  fmt::print("\ncores available: {} ({})\n", topology.limits.cores_available, explain_cores(topology));
  print_links(topology);
  if (ranks > 0) print_plan(plan_of_unbound(topology, ranks));
  if (ranks > 1)
    for (const TransportNeeds& needs : needs_of(topology, ranks, rails)) print_needs(needs, ranks);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return kFailure;
  }
}
