// SPDX-License-Identifier: Apache-2.0
// The search: rings and allreduce trees that fill the links of a machine, how fast they are, and what limits them.
//
// Rates are bus bandwidth in GB/s: bytes / time x 2(n-1)/n for n GPUs, which is the sum of the rings' rates, and the sum
// of the trees' rates x 2(n-1)/n. The same graph and options give the same result: nothing depends on time, and random
// numbers have a fixed seed. docs/topology.md explains the method.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/status.h"
#include "topology/graph.h"

namespace treering {

inline constexpr uint32_t kMaxSearchedGpus = 128;
inline constexpr uint32_t kMaxSearchedChannels = 32;

struct SearchOptions {
  uint32_t max_channels = 16;
  std::optional<std::vector<int32_t>> gpus;  // numbers; else all GPUs. The others are taken away, links and all
};

// Data that goes from one GPU to another one, and the links on its way, in order. Nodes and links are indices into the
// LinkGraph.
struct ChannelHop {
  uint32_t from = 0, to = 0;
  std::vector<uint32_t> links;
};

struct SearchedChannel {
  uint32_t share = 1;
  double gbps = 0;               // of what each hop carries
  std::vector<uint32_t> order;   // a ring: GPUs, each sends to the next one
  std::vector<int32_t> parents;  // a tree: of each of SearchedGraph::gpus, its parent's node; -1: the root
  std::vector<ChannelHop> hops;  // a ring: one for each GPU; a tree: up and down for each GPU but the root
};

struct SearchedPattern {
  double unrounded = 0;  // bus bandwidth where any number of channels may have any rates
  double bound = 0;      // no rings (no trees) are faster
  double rounded = 0;    // bus bandwidth of `channels`
  std::vector<SearchedChannel> channels;
};

// What the trees' bound is due to: the GPUs fall into parts, and each tree has parts - 1 edges at least between them.
struct LimitingLink {
  uint32_t link = 0;
  double weight = 0;  // 1: that of the link that counts most
};
struct TreeLimit {
  std::vector<std::vector<uint32_t>> parts;  // nodes
  std::vector<LimitingLink> links;           // between them
  double gbps = 0;                           // what the links carry each way, each times its weight
  double times = 0;  // how many edges of a tree use them at least, counted alike: bound = gbps / times x 2(n-1)/n
};

struct SearchedGraph {
  std::vector<uint32_t> gpus;  // nodes, by ascending number
  SearchedPattern rings, trees;
  TreeLimit limit;
};

Status search_graph(const LinkGraph& graph, const SearchOptions& options, SearchedGraph* result);

}  // namespace treering
