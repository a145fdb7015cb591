// SPDX-License-Identifier: Apache-2.0
#include "topology/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

#include "topology/location.h"

namespace treering {

Plan flat_plan(uint32_t ranks) {
  Plan plan;
  plan.ranks = ranks;
  plan.ring.resize(ranks);
  std::iota(plan.ring.begin(), plan.ring.end(), 0u);
  plan.host.assign(ranks, 0);
  plan.numa_node.assign(ranks, 0);
  plan.package.assign(ranks, -1);
  plan.core.assign(ranks, -1);
  if (ranks > 0) plan.leaders = {0};
  return plan;
}

namespace {

bool agrees(int32_t known, int32_t candidate) { return known < 0 || known == candidate; }

// What `location` leaves open, from the core that the rank gets when the `sharers` ranks of a host that know
// the same spread evenly, in rank order, over the cores that fit it. A location of which no core is known
// here stays as it is.
Location fill_in(Location location, const std::vector<CorePlace>& cores, size_t position, size_t sharers) {
  if (location.core >= 0 && location.numa_node >= 0) return location;
  std::vector<const CorePlace*> fitting;
  for (const CorePlace& core : cores)
    if (agrees(location.package, core.package) && agrees(location.numa_node, core.numa_node) &&
        agrees(location.cache, core.cache) && agrees(location.core, core.core))
      fitting.push_back(&core);
  if (fitting.empty()) return location;
  const CorePlace& core = *fitting[position * fitting.size() / sharers];
  location.package = core.package;
  location.numa_node = core.numa_node;
  location.cache = core.cache;
  location.core = core.core;
  return location;
}

// Leaders by the lowest rank behind each of their switches, from the outermost on: the hosts behind one follow one
// another. What is not known is a switch of the host's own.
void order_by_switches(std::span<const Location> locations, std::vector<uint32_t>* leaders) {
  using Key = std::array<uint32_t, kSwitchLevels + 1>;
  std::map<uint64_t, uint32_t> lowest;
  std::vector<Key> keys;
  for (uint32_t leader : *leaders) {  // ascending
    Key key;
    key.fill(leader);
    for (size_t level = 0; level < kSwitchLevels; ++level)
      if (const uint64_t at = locations[leader].switches[level]; at != 0)
        key[level] = lowest.try_emplace(at, leader).first->second;
    keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  std::transform(keys.begin(), keys.end(), leaders->begin(), [](const Key& key) { return key.back(); });
}

}  // namespace

Plan make_plan(std::span<const Location> locations, const Topology& topology) {
  const auto ranks = static_cast<uint32_t>(locations.size());
  Plan plan = flat_plan(ranks);
  plan.leaders.clear();

  std::map<uint64_t, uint32_t> host_number;  // hosts are numbered in the order of their leaders, their lowest ranks
  for (uint32_t rank = 0; rank < ranks; ++rank)
    if (host_number.try_emplace(locations[rank].host, 0).second) plan.leaders.push_back(rank);
  order_by_switches(locations, &plan.leaders);
  for (uint32_t host = 0; host < plan.leaders.size(); ++host) host_number[locations[plan.leaders[host]].host] = host;
  for (uint32_t rank = 0; rank < ranks; ++rank) plan.host[rank] = host_number[locations[rank].host];

  // Ranks with the same binding share its cores.
  std::map<std::tuple<uint64_t, int32_t, int32_t, int32_t, int32_t>, size_t> sharers;
  std::vector<size_t> position(ranks);
  const auto binding = [&](uint32_t rank) {
    const Location& at = locations[rank];
    return std::tuple(at.host, at.package, at.numa_node, at.cache, at.core);
  };
  for (uint32_t rank = 0; rank < ranks; ++rank) position[rank] = sharers[binding(rank)]++;

  const std::vector<CorePlace> cores = core_places(topology, true);
  std::vector<Location> placed(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    placed[rank] = fill_in(locations[rank], cores, position[rank], sharers[binding(rank)]);
    plan.package[rank] = placed[rank].package;
    plan.core[rank] = placed[rank].core;
    plan.numa_node[rank] = static_cast<uint32_t>(std::max(placed[rank].numa_node, 0));
  }

  std::sort(plan.ring.begin(), plan.ring.end(), [&](uint32_t a, uint32_t b) {
    const auto key = [&](uint32_t rank) {
      const Location& at = placed[rank];
      return std::tuple(plan.host[rank], at.package, at.numa_node, at.cache, at.core, rank);
    };
    return key(a) < key(b);
  });
  return plan;
}

}  // namespace treering
