// SPDX-License-Identifier: Apache-2.0
#include "failure/absent.h"

#include <algorithm>
#include <map>

namespace treering {
namespace {

using Ranks = std::map<uint32_t, const RankProgress*>;

bool has_not_entered(const RankProgress& peer, uint64_t operation) {
  // One that waits in an earlier operation is not at fault itself.
  return peer.operation < operation && peer.completed >= peer.operation;
}

// Follows the waits from rank to rank.
bool is_held_up(const RankProgress& peer, const Ranks& others, uint64_t operation) {
  const RankProgress* at = &peer;
  for (size_t step = 0; step < others.size() && !at->is_stopped && at->waiting_for; ++step) {
    const auto next = others.find(*at->waiting_for);
    if (next == others.end()) return false;  // it waits for the one that asks, or for one of which nothing is known
    at = next->second;
  }
  return at != &peer && has_not_entered(*at, operation) && (at->is_stopped || !at->waiting_for);
}

}  // namespace

std::vector<uint32_t> absent_ranks(const std::vector<RankProgress>& others, uint64_t operation) {
  Ranks by_rank;
  for (const RankProgress& peer : others) by_rank[peer.rank] = &peer;
  std::vector<uint32_t> absent;
  for (const RankProgress& peer : others)
    if (has_not_entered(peer, operation) && !is_held_up(peer, by_rank, operation)) absent.push_back(peer.rank);
  return absent;
}

std::vector<uint32_t> follow_waits(uint32_t own, uint32_t first,
                                   const std::function<std::optional<uint32_t>(uint32_t rank)>& next) {
  std::vector<uint32_t> way;
  for (std::optional<uint32_t> at = first; at; at = *at == own ? std::nullopt : next(*at)) {
    const bool is_there = std::find(way.begin(), way.end(), *at) != way.end();
    way.push_back(*at);
    if (is_there) break;
  }
  return way;
}

}  // namespace treering
