// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/exchange.h"

#include <fmt/format.h>

#include <utility>

namespace treering {

bool Exchange::take(const BlobMessage& part, size_t ranks, Clock::time_point now) {
  if (part.round != round_ + 1 || part.rank >= ranks) return false;
  begin(now);
  parts_[part.rank] = part.bytes;
  return true;
}

BlobsMessage Exchange::finish() {
  BlobsMessage all;
  all.round = round_ + 1;
  for (auto& [rank, bytes] : std::exchange(parts_, {})) all.blobs.push_back(std::move(bytes));
  return all;
}

bool Exchange::end(const BlobsMessage& all, const std::string& bytes) {
  if (all.round <= round_) return false;
  round_ = all.round;
  last_ = bytes;
  parts_.clear();
  began_ = {};
  return true;
}

std::vector<BlobMessage> Exchange::hand_over() {
  std::vector<BlobMessage> given;
  for (auto& [rank, bytes] : std::exchange(parts_, {})) given.push_back({rank, round_ + 1, std::move(bytes)});
  return given;
}

std::string Exchange::missing(const RosterMessage& roster) const {
  constexpr size_t kMaxText = 300;
  std::string text;
  for (uint32_t rank = 0; rank < roster.process_of_rank.size(); ++rank) {
    if (has(rank)) continue;
    if (text.size() > kMaxText) {
      text += ", ...";
      break;
    }
    const Place& place = roster.places[roster.process_of_rank[rank]];
    text += fmt::format("{}rank {} (pid {} on {})", text.empty() ? "" : ", ", rank, place.pid, place.host_name);
  }
  return fmt::format("{} of {} ranks", text, roster.process_of_rank.size());
}

}  // namespace treering
