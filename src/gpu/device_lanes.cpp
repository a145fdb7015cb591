// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_lanes.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering {

Status DeviceLanes::plan(const Operation& operation, uint32_t rank, uint32_t ranks, uint32_t channels,
                         DeviceLanes* made) {
  std::vector<const Transfer*> own;  // sends of this rank to itself, in order
  for (const Transfer& transfer : operation.eager_transfers)
    if (transfer.peer == rank && transfer.send) own.push_back(&transfer);
  made->channels_.assign(channels, {});
  made->lanes_ = made->rows_of_channel_ = 0;
  constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> row_of(size_t{2} * ranks, kNone);  // in its channel
  size_t next_own = 0;
  for (const Transfer& transfer : operation.eager_transfers) {
    const bool to_itself = transfer.peer == rank;
    if (to_itself && transfer.send) continue;
    if (to_itself && (next_own >= own.size() || own[next_own]->bytes != transfer.bytes))
      return {trInvalidUsage, fmt::format("{}: rank {} receives {} bytes from itself that it does not send",
                                          operation.function, rank, transfer.bytes)};
    cuda::DeviceLane lane{};
    lane.peer = transfer.peer;
    lane.bytes = transfer.bytes;
    lane.kind = transfer.send ? cuda::kSendLane : cuda::kReceiveLane;
    if (to_itself) {
      lane.kind = cuda::kCopyLane;
      lane.input = own[next_own++]->view.base();
    }
    if (transfer.send) lane.input = transfer.view.base();
    if (!transfer.send) lane.output = transfer.view.base();
    std::vector<Row>& rows = made->channels_[(rank + transfer.peer) % channels];
    size_t& row = row_of[2 * size_t{transfer.peer} + (transfer.send ? 1 : 0)];
    if (row == kNone) {
      row = rows.size();
      rows.emplace_back();
      made->rows_of_channel_ = std::max(made->rows_of_channel_, static_cast<uint32_t>(rows.size()));
    }
    rows[row].push_back(lane);
    ++made->lanes_;
  }
  if (next_own != own.size())
    return {trInvalidUsage,
            fmt::format("{}: rank {} sends to itself what it does not receive", operation.function, rank)};
  return {};
}

size_t DeviceLanes::table_bytes() const {
  return rows_of_channel_ * channels_.size() * sizeof(cuda::DeviceRow) + lanes_ * sizeof(cuda::DeviceLane);
}

const cuda::DeviceRow* DeviceLanes::write_table(std::byte* table) const {
  auto* const rows = reinterpret_cast<cuda::DeviceRow*>(table);
  auto* next = reinterpret_cast<cuda::DeviceLane*>(rows + rows_of_channel_ * channels_.size());
  for (size_t channel = 0; channel < channels_.size(); ++channel)
    for (size_t row = 0; row < rows_of_channel_; ++row) {
      cuda::DeviceRow& entry = rows[row * channels_.size() + channel];
      entry = {next, row < channels_[channel].size() ? channels_[channel][row].size() : 0};
      if (entry.count > 0) next = std::copy_n(channels_[channel][row].begin(), entry.count, next);
    }
  return rows;
}

}  // namespace treering
