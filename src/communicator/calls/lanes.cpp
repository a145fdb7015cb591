// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/lanes.h"

#include <fmt/format.h>

namespace treering {

bool are_eager(const std::vector<Transfer>& transfers, size_t most_bytes, uint32_t rank, uint32_t ranks) {
  if (most_bytes == 0 || transfers.size() > 2 * size_t{ranks}) return false;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (t.bytes > most_bytes || !t.view.is_contiguous()) return false;
    // To itself: what it sends, then where it is to lie.
    if (t.peer == rank && !t.send && (i == 0 || transfers[i - 1].peer != rank || transfers[i - 1].bytes != t.bytes))
      return false;
    if (t.peer == rank && t.send && (i + 1 == transfers.size() || transfers[i + 1].peer != rank)) return false;
    // One at most for each peer and direction. They are few, or in an order that puts a peer's two side by side.
    for (size_t k = i; k-- > 0 && i - k < 3;)
      if (transfers[k].peer == t.peer && transfers[k].send == t.send) return false;
  }
  return true;
}

Status make_lanes(const std::vector<Transfer>& transfers, const char* function, uint32_t rank, ScheduleCache* schedules,
                  std::shared_ptr<LaneSet>* lanes) {
  auto made = std::make_shared<LaneSet>();
  std::vector<const Schedule*> used;
  auto items_of = [&](const Schedule* schedule) -> std::vector<LaneItem>& {
    for (size_t i = 0; i < used.size(); ++i)
      if (used[i] == schedule) return made->items[i];
    used.push_back(schedule);
    return made->items.emplace_back();
  };
  size_t received_from_self = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer == rank) {
      auto& items = items_of(schedules->copy_lane());
      if (transfer.send) {
        items.push_back({transfer.view, View(), transfer.bytes, {}});
        continue;
      }
      ++received_from_self;
      continue;
    }
    LaneItem item{transfer.send ? transfer.view : View(), transfer.send ? View() : transfer.view, transfer.bytes, {}};
    items_of(transfer.send ? schedules->send_lane(transfer.peer) : schedules->receive_lane(transfer.peer))
        .push_back(item);
  }
  size_t k = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.peer != rank || transfer.send) continue;
    auto& items = items_of(schedules->copy_lane());
    if (k >= items.size() || items[k].count != transfer.bytes)
      return {trInvalidUsage,
              fmt::format("{} on rank {}: its receive {} from itself ({} bytes) has no send to itself of "
                          "that size in the same group",
                          function, rank, k, transfer.bytes)};
    items[k++].output = transfer.view;
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (used[i] == schedules->copy_lane() && made->items[i].size() != received_from_self)
      return {trInvalidUsage, fmt::format("{} on rank {}: {} sends to itself and {} receives from itself in one group",
                                          function, rank, made->items[i].size(), received_from_self)};
  for (size_t i = 0; i < used.size(); ++i) made->lanes.push_back({used[i], made->items[i]});
  *lanes = std::move(made);
  return {};
}

}  // namespace treering
