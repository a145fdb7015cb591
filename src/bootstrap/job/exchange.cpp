// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace treering {

void Exchange::answered(Kind kind) {
  std::erase_if(unanswered_, [kind](const Unanswered& each) { return each.kind == kind; });
}

bool Exchange::take_part(const BlobMessage& blob, uint32_t ranks) {
  if (blob.round != round_ + 1 || blob.rank >= ranks) return false;
  parts_[blob.rank] = blob.bytes;
  return true;
}

std::string Exchange::complete(uint32_t ranks) {
  if (parts_.size() < ranks) return {};
  BlobsMessage message;
  message.round = round_ + 1;
  for (auto& [rank, bytes] : parts_) message.blobs.push_back(std::move(bytes));
  parts_.clear();
  return encode(message);
}

void Exchange::hand_over() {
  for (auto& [rank, bytes] : std::exchange(parts_, {}))
    keep(Kind::kBlob, encode(BlobMessage{rank, round_ + 1, std::move(bytes)}));
}

std::shared_ptr<const std::vector<std::string>> Exchange::finish_round(const std::string& bytes, uint32_t ranks) {
  BlobsMessage message;
  if (!decode(bytes, &message) || message.blobs.size() != ranks || message.round <= round_) return nullptr;
  answered(Kind::kBlob);
  parts_.clear();
  round_ = message.round;
  last_blobs_ = bytes;
  return std::make_shared<const std::vector<std::string>>(std::move(message.blobs));
}

std::string Exchange::missing(const ProcessTree& tree) const {
  constexpr size_t kMaxText = 300;
  const auto is_missing = [&](uint32_t rank) { return parts_.count(rank) == 0; };
  const auto name_of = [&](uint32_t rank) {
    const Place& place = tree.place(tree.process_of(rank));
    return fmt::format("rank {} (pid {} on {})", rank, place.pid, place.host_name);
  };
  // Whether the parents lead to an end. What is told of them may be a circle for a moment.
  const auto is_known = [&](uint32_t process) {
    for (uint32_t steps = 0; steps <= tree.size(); ++steps, process = tree.parent_of(process))
      if (process >= tree.size()) return true;
    return false;
  };
  // The first rank of a parent that has sent nothing. While it is silent nothing is known of its children.
  const auto mute_above = [&](uint32_t rank) -> std::optional<uint32_t> {
    const uint32_t above = tree.parent_of(tree.process_of(rank));
    if (above >= tree.size() || above == tree.own() || !is_known(above)) return {};
    const std::vector<uint32_t> ranks = tree.ranks_of(above);
    if (ranks.empty() || !std::all_of(ranks.begin(), ranks.end(), is_missing)) return {};
    return ranks.front();
  };
  std::string text, below;
  for (uint32_t rank = 0; rank < tree.ranks(); ++rank) {
    if (!is_missing(rank)) continue;
    if (text.size() > kMaxText) {
      text += ", ...";
      break;
    }
    if (const auto above = mute_above(rank); !above)
      text += (text.empty() ? "" : ", ") + name_of(rank);
    else if (below.size() <= kMaxText)
      below += fmt::format("; {} is heard through {} alone", name_of(rank), name_of(*above));
  }
  return fmt::format("{} of {} ranks{}", text, tree.ranks(), below);
}

bool Exchange::is_awaited() const {
  const auto is_part = [](const Unanswered& each) { return each.kind == Kind::kBlob; };
  return is_under_way() || std::any_of(unanswered_.begin(), unanswered_.end(), is_part);
}

}  // namespace treering
