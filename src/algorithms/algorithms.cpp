// SPDX-License-Identifier: Apache-2.0
// The table of algorithms. A new one is a file that ends in its row, and a line here.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "algorithms/algorithm.h"
#include "core/names.h"
#include "core/spelling.h"

namespace treering {

std::span<const Algorithm* const> algorithms_of(Collective collective) {
  static constexpr const Algorithm* kAllReduceRows[] = {
      &kOneShot, &kRecursiveDoubling, &kTwoShot, &kRing,   &kHalvingDoubling,
      &kTree,    &kHierarchical,      &kHybrid,  &kRing2d, &kHybridRing};
  static constexpr const Algorithm* kReduceRows[] = {&kReduceDirect, &kReduceScatterGather, &kReduceTree};
  static constexpr const Algorithm* kBroadcastRows[] = {&kBroadcastDirect, &kBroadcastScatterAllgather,
                                                        &kBroadcastChain, &kBroadcastBinomial, &kBroadcastTree};
  static constexpr const Algorithm* kAllGatherRows[] = {&kAllGatherDirect, &kAllGatherRing, &kAllGatherBruck};
  static constexpr const Algorithm* kReduceScatterRows[] = {&kReduceScatterDirect, &kReduceScatterRing,
                                                            &kReduceScatterHalving};
  static constexpr const Algorithm* kAllToAllRows[] = {&kAllToAllDirect, &kAllToAllPairwise, &kAllToAllBruck};
  static constexpr const Algorithm* kGatherRows[] = {&kGatherDirect, &kGatherBinomial};
  static constexpr const Algorithm* kScatterRows[] = {&kScatterDirect, &kScatterBinomial};
  static constexpr const Algorithm* kBarrierRows[] = {&kBarrierOneShot, &kBarrierRecursiveDoubling, &kBarrierTree};
  switch (collective) {
    case Collective::kAllReduce:
      return kAllReduceRows;
    case Collective::kReduce:
      return kReduceRows;
    case Collective::kBroadcast:
      return kBroadcastRows;
    case Collective::kAllGather:
      return kAllGatherRows;
    case Collective::kReduceScatter:
      return kReduceScatterRows;
    case Collective::kAllToAll:
      return kAllToAllRows;
    case Collective::kGather:
      return kGatherRows;
    case Collective::kScatter:
      return kScatterRows;
    case Collective::kBarrier:
      return kBarrierRows;
  }
  return {};
}

const char* protocol_name(Protocol protocol) {
  switch (protocol) {
    case Protocol::kMailbox:
      return "mailbox";
    case Protocol::kStaged:
      return "staged";
    case Protocol::kDirect:
      return "direct";
  }
  return "?";
}

namespace {

std::string names_of(Collective collective) {
  std::string known;
  for (const Algorithm* row : algorithms_of(collective))
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row->name);
  return known;
}

const Algorithm* row_named(Collective collective, std::string_view name) {
  for (const Algorithm* row : algorithms_of(collective))
    if (name == row->name) return row;
  return nullptr;
}

// The next word of a comma-separated list: [collective:]name. False at the end.
bool next_word(std::string_view* list, std::string_view* collective, std::string_view* name) {
  while (!list->empty()) {
    const std::string_view word = list->substr(0, list->find(','));
    list->remove_prefix(std::min(list->size(), word.size() + 1));
    if (word.empty()) continue;
    const size_t colon = word.find(':');
    *collective = colon == word.npos ? std::string_view() : word.substr(0, colon);
    *name = colon == word.npos ? word : word.substr(colon + 1);
    return true;
  }
  return false;
}

}  // namespace

Status find_algorithm(Collective collective, std::string_view name, const Algorithm** algorithm) {
  if ((*algorithm = row_named(collective, name)) != nullptr) return {};
  std::vector<std::string_view> names;
  for (const Algorithm* row : algorithms_of(collective)) names.emplace_back(row->name);
  return {trInvalidArgument, fmt::format("unknown algorithm '{}' of {}{}; the known ones are: {}", name,
                                         info_of(collective).name, suggestion(name, names), fmt::join(names, ", "))};
}

namespace {

Status check_of_collective(std::string_view collective, std::string_view name) {
  const Algorithm* algorithm = nullptr;
  if (const CollectiveInfo* info = find_collective(collective); info != nullptr)
    return find_algorithm(info->collective, name, &algorithm);
  std::vector<std::string_view> names;
  for (const CollectiveInfo& row : collectives()) names.emplace_back(row.name);
  return {trInvalidArgument, fmt::format("unknown collective '{}'{}; the known ones are: {}", collective,
                                         suggestion(collective, names), fmt::join(names, ", "))};
}

Status check_of_any(std::string_view name) {
  std::vector<std::string_view> names;
  std::string known;
  for (const CollectiveInfo& row : collectives()) {
    if (row_named(row.collective, name) != nullptr) return {};
    for (const Algorithm* algorithm : algorithms_of(row.collective)) names.emplace_back(algorithm->name);
    known += fmt::format("{}{}: {}", known.empty() ? "" : "; ", row.name, names_of(row.collective));
  }
  return {trInvalidArgument,
          fmt::format("unknown algorithm '{}'{}; the known ones are: {}", name, suggestion(name, names), known)};
}

}  // namespace

Status check_forced_algorithms(std::string_view forced) {
  std::string_view list = forced, collective, name;
  while (next_word(&list, &collective, &name))
    TR_RETURN_IF_ERROR(collective.empty() ? check_of_any(name) : check_of_collective(collective, name));
  return {};
}

const Algorithm* forced_algorithm(std::string_view forced, Collective collective) {
  std::string_view list = forced, wanted, name;
  const Algorithm* algorithm = nullptr;
  // The word that names the collective wins over one that does not.
  while (next_word(&list, &wanted, &name)) {
    const Algorithm* row = row_named(collective, name);
    if (row == nullptr || (!wanted.empty() && !same_collective(wanted, info_of(collective).name))) continue;
    if (!wanted.empty()) return row;
    if (algorithm == nullptr) algorithm = row;
  }
  return algorithm;
}

Status check_build(const Algorithm& algorithm, const Plan& plan, uint32_t rank, const Shape& shape) {
  const auto bad = [](std::string message) { return Status(trInvalidArgument, std::move(message)); };
  if (plan.ranks < algorithm.min_ranks || plan.ranks > algorithm.max_ranks)
    return bad(fmt::format("algorithm '{}' takes {} to {} ranks, not {}", algorithm.name, algorithm.min_ranks,
                           algorithm.max_ranks, plan.ranks));
  if (rank >= plan.ranks) return bad(fmt::format("rank {} does not exist: ranks are 0 to {}", rank, plan.ranks - 1));
  if (plan.ring.size() != plan.ranks)
    return bad(fmt::format("the plan's ring names {} ranks, the plan has {}", plan.ring.size(), plan.ranks));
  std::vector<bool> seen(plan.ranks);
  for (uint32_t member : plan.ring) {
    if (member >= plan.ranks || seen[member])
      return bad(fmt::format("the plan's ring is no permutation of the ranks: rank {} {}", member,
                             member >= plan.ranks ? "does not exist" : "occurs twice"));
    seen[member] = true;
  }
  if (shape.channels == 0 || shape.channel >= shape.channels)
    return bad(fmt::format("channel {} does not exist: there are {} channels", shape.channel, shape.channels));
  if (shape.pipeline_chunks == 0 || shape.pipeline_chunks > 65535)
    return bad(fmt::format("{} pipeline chunks: must be 1 to 65535", shape.pipeline_chunks));
  return {};
}

}  // namespace treering
