// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/exchange.h"

#include <fmt/format.h>

#include <algorithm>

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

std::string Exchange::missing(const ProcessTableMessage& table) const {
  constexpr size_t kMaxText = 300;
  std::string text;
  for (uint32_t rank = 0; rank < table.process_of_rank.size(); ++rank) {
    if (parts_.count(rank) != 0) continue;
    if (text.size() > kMaxText) {
      text += ", ...";
      break;
    }
    const Place& place = table.places[table.process_of_rank[rank]];
    text += fmt::format("{}rank {} (pid {} on {})", text.empty() ? "" : ", ", rank, place.pid, place.host_name);
  }
  return fmt::format("{} of {} ranks", text, table.process_of_rank.size());
}

bool Exchange::is_awaited() const {
  const auto is_part = [](const Unanswered& each) { return each.kind == Kind::kBlob; };
  return is_under_way() || std::any_of(unanswered_.begin(), unanswered_.end(), is_part);
}

}  // namespace treering
