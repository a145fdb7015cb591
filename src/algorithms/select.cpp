// SPDX-License-Identifier: Apache-2.0
#include "algorithms/select.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering {
namespace {

constexpr uint32_t kPipelineDepths[] = {1, 2, 4, 8, 16, 32};
constexpr double kTie = 1.02;                     // predictions are no more exact than this
constexpr uint64_t kLargest = uint64_t{1} << 32;  // beyond it nothing changes any more

bool same_choice(const Candidate& a, const Candidate& b) {
  return a.algorithm == b.algorithm && a.protocol == b.protocol && a.channels == b.channels;
}

// Why the protocol does not fit, or "".
std::string obstacle(const Machine& machine, const SelectionInput& input, const Algorithm& algorithm,
                     Protocol protocol) {
  if (protocol == Protocol::kMailbox) {
    const CollectiveInfo& info = info_of(algorithm.collective);
    if (info.collective != Collective::kAllReduce && info.collective != Collective::kBarrier) {
      const uint64_t block = input.bytes / (info.parts == Parts::kOne ? 1 : input.ranks);
      if (block > machine.eager_bytes)
        return fmt::format("blocks of {} bytes are more than one small message takes ({})", block, machine.eager_bytes);
      return "";
    }
    if (machine.mailbox_bytes == 0) return "mailboxes are for at most 64 ranks that all share memory, at its full rate";
    if (input.bytes > machine.mailbox_bytes)
      return fmt::format("{} bytes are more than a mailbox takes ({})", input.bytes, machine.mailbox_bytes);
    return "";
  }
  if (protocol == Protocol::kStaged) return "";
  if (!input.direct) return "the peers cannot reach the buffers";
  if (input.in_place && !algorithm.input_used_once && input.ranks > 1)
    return "in place, peers could read an input that is overwritten already";
  return "";
}

void add_candidates(const Machine& machine, const SelectionInput& input, const Algorithm& algorithm,
                    Selection& selection) {
  for (Protocol protocol : {Protocol::kMailbox, Protocol::kDirect, Protocol::kStaged}) {
    if (protocol == Protocol::kMailbox && !algorithm.mailbox) continue;
    const std::string reason = obstacle(machine, input, algorithm, protocol);
    if (!reason.empty()) {
      selection.left_out.push_back(fmt::format("{} {}: {}", algorithm.name, protocol_name(protocol), reason));
      continue;
    }
    for (uint32_t depth : kPipelineDepths) {
      if (depth > 1 && !algorithm.pipelined) break;
      Candidate candidate;
      candidate.algorithm = &algorithm;
      candidate.protocol = protocol;
      candidate.pipeline_chunks = depth;
      candidate.channels = input.channels != 0 ? input.channels : std::min(algorithm.channels, machine.channels);
      if (protocol == Protocol::kMailbox || input.ranks == 1) candidate.channels = 1;
      predict(machine, input.ranks, input.bytes, candidate);
      selection.candidates.push_back(candidate);
    }
  }
}

// Why the algorithm cannot do what is asked for, or "".
std::string unfit(const Machine& machine, const SelectionInput& input, const Algorithm& algorithm) {
  if (input.ranks < algorithm.min_ranks || input.ranks > algorithm.max_ranks)
    return fmt::format("takes {} to {} ranks, not {}", algorithm.min_ranks, algorithm.max_ranks, input.ranks);
  if (input.unequal && algorithm.equal_parts_only) return "needs blocks of equal size";
  if (input.rank_ordered_only && !algorithm.rank_ordered) return "does not combine in the order of the ranks";
  if (input.computed_once_only && !algorithm.computed_once) return "computes results on several ranks";
  return "";
}

// Why it is of no use between so few hosts, or "". It works there, for those who try it out.
std::string too_few_hosts(const Machine& machine, const Algorithm& algorithm) {
  if (machine.hosts >= algorithm.min_hosts) return "";
  return fmt::format("is for ranks on {} hosts or more, these are on {}", algorithm.min_hosts, machine.hosts);
}

// Why it is only for few ranks, or "".
std::string crowd(const Machine& machine, const SelectionInput& input, const Algorithm& algorithm) {
  uint32_t group = 0;
  if (algorithm.all_peers)
    group = input.ranks;
  else if (algorithm.all_local_peers)
    group = machine.host_ranks == 0 ? input.ranks : machine.host_ranks;
  if (group <= kMaxAllPeers) return "";
  return fmt::format("has messages between all pairs of {} ranks, which is for up to {}", group, kMaxAllPeers);
}

}  // namespace

Status select(const Machine& machine, const SelectionInput& input, Selection* selection) {
  *selection = {};
  if (input.ranks == 0) return {trInvalidArgument, "0 ranks: a collective needs at least one"};
  TR_RETURN_IF_ERROR(check_forced_algorithms(input.forced));
  const Algorithm* forced = forced_algorithm(input.forced, input.collective);
  if (forced != nullptr)
    if (const std::string reason = unfit(machine, input, *forced); !reason.empty()) {
      // Too many ranks is what the user can mend; the rest depends on the single call.
      if (input.ranks < forced->min_ranks || input.ranks > forced->max_ranks)
        return {trInvalidArgument, fmt::format("no algorithm fits; {}: {}", forced->name, reason)};
      selection->left_out.push_back(fmt::format("{}: {}", forced->name, reason));
      selection->forced_left_out = selection->left_out.back();
      forced = nullptr;
    }
  if (forced != nullptr) selection->forced_in_vain = too_few_hosts(machine, *forced);
  std::vector<const Algorithm*> crowded;  // better than none
  for (const Algorithm* algorithm : algorithms_of(input.collective)) {
    if (forced != nullptr && forced != algorithm) continue;
    std::string reason = unfit(machine, input, *algorithm);
    if (reason.empty() && forced == nullptr) reason = too_few_hosts(machine, *algorithm);
    if (reason.empty() && forced == nullptr && !(reason = crowd(machine, input, *algorithm)).empty())
      crowded.push_back(algorithm);
    if (reason.empty())
      add_candidates(machine, input, *algorithm, *selection);
    else
      selection->left_out.push_back(fmt::format("{}: {}", algorithm->name, reason));
  }
  if (selection->candidates.empty())
    for (const Algorithm* algorithm : crowded) add_candidates(machine, input, *algorithm, *selection);
  if (selection->candidates.empty())
    return {trInvalidArgument, fmt::format("no algorithm fits; {}", fmt::join(selection->left_out, "; "))};
  double least = selection->candidates.front().predicted_us;
  for (const Candidate& candidate : selection->candidates) least = std::min(least, candidate.predicted_us);
  selection->best = *std::find_if(selection->candidates.begin(), selection->candidates.end(),
                                  [&](const Candidate& c) { return c.predicted_us <= least * kTie; });
  return {};
}

Status selection_ranges(const Machine& machine, SelectionInput input, std::vector<SelectionRange>* ranges) {
  ranges->clear();
  const auto choice = [&](uint64_t bytes, Candidate* candidate) -> Status {
    Selection selection;
    input.bytes = bytes;
    TR_RETURN_IF_ERROR(select(machine, input, &selection));
    *candidate = selection.best;
    return {};
  };
  Candidate current;
  TR_RETURN_IF_ERROR(choice(0, &current));
  ranges->push_back({0, 0, current});
  // Quarter powers of two find the changes, bisection places each to the byte.
  for (uint64_t power = 4, below = 0; power <= kLargest; power *= 2) {
    for (uint64_t bytes = power; bytes < 2 * power; below = bytes, bytes += power / 4) {
      Candidate next;
      TR_RETURN_IF_ERROR(choice(bytes, &next));
      // More than one change may lie between two looks.
      for (uint64_t low = below; !same_choice(next, ranges->back().at_first); low = ranges->back().first_bytes) {
        uint64_t high = bytes;  // low: the old choice; high: another
        while (high - low > 1) {
          const uint64_t middle = low + (high - low) / 2;
          TR_RETURN_IF_ERROR(choice(middle, &current));
          (same_choice(current, ranges->back().at_first) ? low : high) = middle;
        }
        TR_RETURN_IF_ERROR(choice(high, &current));
        ranges->back().last_bytes = low;
        ranges->push_back({high, high, current});
      }
    }
  }
  ranges->back().last_bytes = UINT64_MAX;
  return {};
}

}  // namespace treering
