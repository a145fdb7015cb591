// SPDX-License-Identifier: Apache-2.0
#include "failure/absent.h"

#include <algorithm>
#include <map>

namespace treering {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;

using Ranks = std::map<uint32_t, const RankProgress*>;

bool has_not_entered(const RankProgress& peer, uint64_t operation) {
  // One that waits in an earlier operation is not at fault itself.
  return peer.operation < operation && peer.completed >= peer.operation;
}

bool is_held_up(const RankProgress& peer, const Ranks& others, uint64_t operation) {
  // One of which nothing is known ends the way: it may be the rank that asks.
  const std::vector<uint32_t> way = follow_waits(kNoRank, peer.rank, [&others](uint32_t rank) {
    const auto found = others.find(rank);
    return found == others.end() || found->second->is_stopped ? std::nullopt : found->second->waiting_for;
  });
  const auto last = others.find(way.back());
  if (last == others.end() || last->second == &peer) return false;
  return has_not_entered(*last->second, operation) && (last->second->is_stopped || !last->second->waiting_for);
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
