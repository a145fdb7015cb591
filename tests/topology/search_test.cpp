// SPDX-License-Identifier: Apache-2.0
// Rings and trees: the machines whose best rates are known, random graphs against all rings and all trees, names that
// change nothing, links that are never overloaded.
#include "topology/search/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/seed.h"
#include "topology/brute_force.h"
#include "topology/machines.h"

namespace treering {
namespace {

constexpr double kUnrounded = 0.99, kRounded = 0.97;

SearchedGraph searched(const LinkGraph& graph, SearchOptions options = {}) {
  SearchedGraph found;
  const Status status = search_graph(graph, options, &found);
  EXPECT_TRUE(status.ok()) << status.message();
  return found;
}

// The channels use links that are there, from end to end, through no other GPU, and no link more than it carries.
void expect_sound(const LinkGraph& graph, const SearchedGraph& found, const SearchedPattern& pattern, bool is_ring) {
  const size_t gpus = found.gpus.size();
  std::vector<double> ahead(graph.links.size(), 0), back(graph.links.size(), 0);
  double sum = 0, shares = 0;
  for (const SearchedChannel& channel : pattern.channels) sum += channel.gbps, shares += channel.share;
  EXPECT_NEAR(sum * (is_ring ? 1.0 : 2.0 * static_cast<double>(gpus - 1) / static_cast<double>(gpus)), pattern.rounded,
              1e-9 * pattern.rounded);
  for (const SearchedChannel& channel : pattern.channels) {
    EXPECT_NEAR(channel.gbps, sum * channel.share / shares, 1e-9 * sum);
    for (const ChannelHop& hop : channel.hops) {
      uint32_t here = hop.from;
      for (uint32_t index : hop.links) {
        const GraphLink& link = graph.links[index];
        ASSERT_TRUE(here == link.a || here == link.b);
        (here == link.a ? ahead : back)[index] += channel.gbps;
        here = here == link.a ? link.b : link.a;
        EXPECT_TRUE(here == hop.to || graph.nodes[here].kind != NodeKind::kGpu);
      }
      EXPECT_EQ(here, hop.to);
    }
  }
  for (size_t i = 0; i < graph.links.size(); ++i) {
    EXPECT_LE(ahead[i], graph.links[i].gbps_ab * (1 + 1e-9)) << i;
    EXPECT_LE(back[i], graph.links[i].gbps_ba * (1 + 1e-9)) << i;
  }
}

void expect_rings(const SearchedGraph& found) {
  for (const SearchedChannel& ring : found.rings.channels) {
    std::vector<uint32_t> order = ring.order;
    ASSERT_EQ(ring.hops.size(), order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(ring.hops[i].from, order[i]);
      EXPECT_EQ(ring.hops[i].to, order[(i + 1) % order.size()]);
    }
    std::vector<uint32_t> gpus = found.gpus;
    std::sort(order.begin(), order.end());
    std::sort(gpus.begin(), gpus.end());
    EXPECT_EQ(order, gpus);
  }
}

void expect_trees(const SearchedGraph& found) {
  const size_t gpus = found.gpus.size();
  const auto place = [&](int32_t node) {
    return static_cast<size_t>(std::find(found.gpus.begin(), found.gpus.end(), static_cast<uint32_t>(node)) -
                               found.gpus.begin());
  };
  for (const SearchedChannel& tree : found.trees.channels) {
    ASSERT_EQ(tree.parents.size(), gpus);
    ASSERT_EQ(tree.hops.size(), 2 * (gpus - 1));
    EXPECT_EQ(std::count(tree.parents.begin(), tree.parents.end(), -1), 1);
    for (size_t i = 0; i < gpus; ++i) {
      size_t at = i, steps = 0;
      for (; tree.parents[at] >= 0 && steps <= gpus; ++steps) at = place(tree.parents[at]);
      EXPECT_LT(steps, gpus) << "a circle";
      if (tree.parents[i] < 0) continue;
      for (bool up : {true, false}) {
        const uint32_t child = found.gpus[i], parent = static_cast<uint32_t>(tree.parents[i]);
        EXPECT_EQ(std::count_if(tree.hops.begin(), tree.hops.end(),
                                [&](const ChannelHop& hop) {
                                  return hop.from == (up ? child : parent) && hop.to == (up ? parent : child);
                                }),
                  1);
      }
    }
  }
}

void expect_sound(const LinkGraph& graph, const SearchedGraph& found) {
  expect_sound(graph, found, found.rings, true);
  expect_sound(graph, found, found.trees, false);
  expect_rings(found);
  expect_trees(found);
}

// `rings` and `trees`: the optimum.
void expect_near(const SearchedGraph& found, double rings, double trees, double rounded) {
  for (const auto& [pattern, best] : {std::pair(&found.rings, rings), std::pair(&found.trees, trees)}) {
    EXPECT_GE(pattern->unrounded, kUnrounded * best);
    EXPECT_LE(pattern->unrounded, best * (1 + 1e-6));
    EXPECT_GE(pattern->bound, best * (1 - 1e-6));
    EXPECT_LE(pattern->rounded, pattern->unrounded * (1 + 1e-9));
    EXPECT_LE(pattern->channels.size(), 16u);
  }
  EXPECT_GE(std::max(found.rings.rounded, found.trees.rounded), rounded * std::max(rings, trees));
}

TEST(Search, KnownMachines) {
  fmt::print("{:<34} {:>8} {:>8} {:>8}({:>2}) {:>8} {:>8} {:>8}({:>2}) {:>7}\n", "machine", "rings", "found", "rounded",
             "", "trees", "found", "rounded", "", "ms");
  for (const Machine& machine : known_machines()) {
    SCOPED_TRACE(machine.name);
    const LinkGraph graph = graph_of(machine.text);
    const auto begin = std::chrono::steady_clock::now();
    const SearchedGraph found = searched(graph);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    fmt::print("{:<34} {:>8.4g} {:>8.4g} {:>8.4g}({:>2}) {:>8.4g} {:>8.4g} {:>8.4g}({:>2}) {:>7.1f}\n", machine.name,
               machine.rings, found.rings.unrounded, found.rings.rounded, found.rings.channels.size(), machine.trees,
               found.trees.unrounded, found.trees.rounded, found.trees.channels.size(), took.count());
    expect_near(found, machine.rings, machine.trees, kRounded);
    expect_sound(graph, found);
  }
}

TEST(Search, Dgx1WithoutAnyOneGpu) {
  const LinkGraph graph = graph_of(kDgx1Volta);
  for (int32_t without = 0; without < 8; ++without) {
    SCOPED_TRACE(without);
    SearchOptions options;
    options.gpus.emplace();
    for (int32_t gpu = 0; gpu < 8; ++gpu)
      if (gpu != without) options.gpus->push_back(gpu);
    const SearchedGraph found = searched(graph, options);
    ASSERT_EQ(found.gpus.size(), 7u);
    expect_near(found, 4, 36.0 / 7, kRounded);
    expect_sound(graph, found);
  }
}

// Links between GPUs alone: trees by the formula of Tutte and Nash-Williams, rings by all of them at once.
TEST(Search, RandomMeshesAgainstBruteForce) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 60; ++i) {
    const uint32_t gpus = 2 + static_cast<uint32_t>(random() % 6);
    const LinkGraph graph = random_mesh(random, gpus);
    SearchedGraph found;
    const Status status = search_graph(graph, {}, &found);
    const double trees = best_mesh_trees(graph), rings = best_mesh_rings(graph);
    SCOPED_TRACE(fmt::format("graph {}: rings {}, trees {}", i, rings, trees));
    if (!status.ok()) {
      EXPECT_EQ(trees, 0) << status.message();
      continue;
    }
    expect_near(found, rings, trees, 0.95);
    expect_sound(graph, found);
  }
}

// Transit nodes, rates that differ by direction: all rings and all trees by all paths.
TEST(Search, RandomGraphsWithTransitNodesAgainstBruteForce) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 60; ++i) {
    const LinkGraph graph = i % 2 == 0 ? random_transit_graph(random, 3, 2) : random_transit_graph(random, 4, 1);
    const double rings = best_by_all_columns(graph, true), trees = best_by_all_columns(graph, false);
    SCOPED_TRACE(fmt::format("graph {}: rings {}, trees {}", i, rings, trees));
    SearchedGraph found;
    const Status status = search_graph(graph, {}, &found);
    if (!status.ok()) {
      EXPECT_EQ(std::max(rings, trees), 0) << status.message();
      continue;
    }
    expect_near(found, rings, trees, 0.95);
    expect_sound(graph, found);
  }
}

// The same machine with nodes, links and numbers in another order.
LinkGraph relabelled(const LinkGraph& graph, std::mt19937_64& random) {
  std::vector<uint32_t> place(graph.nodes.size());
  std::iota(place.begin(), place.end(), 0u);
  std::shuffle(place.begin(), place.end(), random);
  std::vector<int32_t> numbers;
  for (uint32_t gpu : graph.gpus()) numbers.push_back(graph.nodes[gpu].number);
  std::shuffle(numbers.begin(), numbers.end(), random);
  LinkGraph result;
  result.nodes.resize(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    result.nodes[place[i]] = graph.nodes[i];
    if (graph.nodes[i].kind != NodeKind::kGpu) continue;
    result.nodes[place[i]].number = numbers.back();
    numbers.pop_back();
  }
  for (GraphLink link : graph.links) {
    link.a = place[link.a], link.b = place[link.b];
    if (random() % 2 == 0) std::swap(link.a, link.b), std::swap(link.gbps_ab, link.gbps_ba);
    result.links.push_back(link);
  }
  std::shuffle(result.links.begin(), result.links.end(), random);
  return result;
}

// Which of the GPUs are left decides much: all 247 sets of at least two.
TEST(Search, EverySubsetOfADgx1AgainstBruteForce) {
  const LinkGraph graph = graph_of(kDgx1Volta);
  for (uint32_t set = 1; set < 256; ++set) {
    SearchOptions options;
    options.gpus.emplace();
    for (int32_t gpu = 0; gpu < 8; ++gpu)
      if ((set >> gpu & 1) != 0) options.gpus->push_back(gpu);
    if (options.gpus->size() < 2) continue;
    const LinkGraph alone = only_gpus(graph, *options.gpus);
    const double trees = best_mesh_trees(alone), rings = best_mesh_rings(alone);
    SCOPED_TRACE(fmt::format("GPUs {}: rings {}, trees {}", fmt::join(*options.gpus, " "), rings, trees));
    SearchedGraph found;
    const Status status = search_graph(graph, options, &found);
    EXPECT_EQ(status.ok(), trees > 0) << status.message();
    if (!status.ok()) continue;
    expect_near(found, rings, trees, kRounded);
    expect_sound(graph, found);
  }
}

TEST(Search, NamesChangeNoBandwidth) {
  std::mt19937_64 random(test_seed());
  for (const Machine& machine : known_machines()) {
    const LinkGraph graph = graph_of(machine.text);
    if (graph.gpus().size() > 12) continue;
    for (int i = 0; i < 5; ++i) {
      SCOPED_TRACE(fmt::format("{}, {}", machine.name, i));
      const LinkGraph other = relabelled(graph, random);
      const SearchedGraph found = searched(other);
      expect_near(found, machine.rings, machine.trees, kRounded);
      expect_sound(other, found);
    }
  }
}

TEST(Search, TheSameTwice) {
  const LinkGraph graph = graph_of(kSummit);
  const SearchedGraph one = searched(graph), two = searched(graph);
  EXPECT_EQ(one.rings.unrounded, two.rings.unrounded);
  EXPECT_EQ(one.trees.bound, two.trees.bound);
  ASSERT_EQ(one.trees.channels.size(), two.trees.channels.size());
  for (size_t i = 0; i < one.trees.channels.size(); ++i)
    EXPECT_EQ(one.trees.channels[i].parents, two.trees.channels[i].parents);
}

TEST(Search, FewerChannelsLoseSomeAndNeverExceedTheirNumber) {
  const LinkGraph graph = graph_of(kDgx1Volta);
  for (uint32_t channels : {1u, 2u, 3u, 6u}) {
    SearchOptions options;
    options.max_channels = channels;
    const SearchedGraph found = searched(graph, options);
    EXPECT_LE(found.rings.channels.size(), channels);
    EXPECT_LE(found.trees.channels.size(), channels);
    EXPECT_GE(found.rings.rounded, channels >= 6 ? 5.9 : std::min(channels, 3u)) << channels;
    expect_sound(graph, found);
  }
}

TEST(Search, TheLimitIsACutOrAllLinks) {
  SearchedGraph found = searched(graph_of(kSummit));
  EXPECT_EQ(found.limit.parts.size(), 2u);
  EXPECT_NEAR(found.limit.gbps, 32, 1e-6);
  EXPECT_NEAR(found.limit.times, 1, 0.01);
  EXPECT_EQ(found.limit.links.size(), 1u);

  found = searched(graph_of(full_mesh(6)));
  EXPECT_EQ(found.limit.parts.size(), 6u);
  EXPECT_EQ(found.limit.links.size(), 15u);
  EXPECT_NEAR(found.limit.gbps, 15, 0.2);
  EXPECT_NEAR(found.limit.times, 5, 0.1) << "edges of each tree";

  found = searched(graph_of(nvswitch_hosts(3)));
  EXPECT_EQ(found.limit.parts.size(), 3u);

  SearchOptions seven;
  seven.gpus = {0, 1, 2, 3, 4, 5, 6};
  found = searched(graph_of(kDgx1Volta), seven);
  EXPECT_EQ(found.limit.parts.size(), 7u);
}

// GPU 1 is all that joins 0 and 2: a tree, and no ring.
TEST(Search, AChainHasATreeAndNoRing) {
  const LinkGraph graph = graph_of("gpu 0-2\nlink 0 1 at 3\nlink 1 2 at 5\n");
  const SearchedGraph found = searched(graph);
  EXPECT_TRUE(found.rings.channels.empty());
  EXPECT_EQ(found.rings.unrounded, 0);
  EXPECT_EQ(found.rings.bound, 0);
  EXPECT_NEAR(found.trees.rounded, 3 * 4.0 / 3, 1e-3);
  expect_sound(graph, found);
}

TEST(Search, WhatCannotBeSearchedIsSaid) {
  const auto said = [](const std::string& text, SearchOptions options = {}) {
    SearchedGraph found;
    return search_graph(graph_of(text), options, &found).message();
  };
  SearchOptions three, none;
  three.gpus = {0, 3};
  none.max_channels = 0;
  EXPECT_EQ(said("gpu 0 on cpu0 at 1\n"), "rings and trees need at least 2 GPUs, and there is 1: describe more");
  EXPECT_EQ(said("gpu 0-1\n"), "no path leads from gpu0 to gpu1: link them, or select the GPUs to search");
  EXPECT_EQ(said("gpu 0-1 on cpu0 at 1\n", three), "there is no GPU 3 in the graph: name GPUs that it has");
  EXPECT_EQ(said("gpu 0-1 on cpu0 at 1\n", none), "0 channels: ask for 1 to 32");
  EXPECT_EQ(said("gpu 0-199 on cpu0 at 1\n"), "200 GPUs are more than the 128 that are searched: select some of them");
}

}  // namespace
}  // namespace treering
