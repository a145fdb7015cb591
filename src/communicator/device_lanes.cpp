#include "communicator/device_lanes.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering {
namespace {

// Transfers of a pair one way in a round: of the ranks that share a channel, each may have as many both ways.
uint32_t each_of_round(uint32_t ranks, uint32_t channels) {
  const uint32_t sharing = (ranks + channels - 1) / channels;
  return std::max(cuda::kMaxLanesOfBlock / (2 * sharing), 1u);
}
static_assert(cuda::kMaxLanesOfBlock >= 2 * cuda::kMaxDeviceRanks);

// The transfers so far between this rank and a peer, one way.
struct Row {
  uint32_t transfers = 0;
  uint32_t last = cuda::kNoLane;  // lane of the last one, in the round of that
};

}  // namespace

Status DeviceLanes::plan(const Operation& operation, uint32_t rank, uint32_t ranks, uint32_t channels,
                         DeviceLanes* made) {
  std::vector<const Transfer*> own;  // sends of this rank to itself, in order
  for (const Transfer& transfer : operation.letters)
    if (transfer.peer == rank && transfer.send) own.push_back(&transfer);
  const uint32_t each = each_of_round(ranks, channels);
  std::vector<Row> rows(size_t{2} * ranks);
  size_t next_own = 0;
  made->rounds.clear();
  for (const Transfer& transfer : operation.letters) {
    const bool to_itself = transfer.peer == rank;
    if (to_itself && transfer.send) continue;
    if (to_itself && (next_own >= own.size() || own[next_own]->bytes != transfer.bytes))
      return {trInvalidUsage, fmt::format("{}: rank {} receives {} bytes from itself that it does not send",
                                          operation.function, rank, transfer.bytes)};
    cuda::DeviceLane lane{};
    lane.peer = transfer.peer;
    lane.bytes = transfer.bytes;
    lane.kind = to_itself ? cuda::kCopyLane : transfer.send ? cuda::kSendLane : cuda::kReceiveLane;
    if (to_itself) lane.input = own[next_own++]->view.base();
    if (transfer.send) lane.input = transfer.view.base();
    if (!transfer.send) lane.output = transfer.view.base();
    Row& row = rows[2 * size_t{transfer.peer} + (transfer.send ? 1 : 0)];
    const uint32_t round = row.transfers / each;
    lane.after = row.transfers % each == 0 ? cuda::kNoLane : row.last;
    if (round == made->rounds.size()) made->rounds.emplace_back(channels);
    auto& lanes = made->rounds[round][(rank + transfer.peer) % channels];
    row.last = static_cast<uint32_t>(lanes.size());
    ++row.transfers;
    lanes.push_back(lane);
  }
  if (next_own != own.size())
    return {trInvalidUsage,
            fmt::format("{}: rank {} sends to itself what it does not receive", operation.function, rank)};
  return {};
}

size_t DeviceLanes::rows(const Round& round) {
  size_t most = 0;
  for (const auto& lanes : round) most = std::max(most, lanes.size());
  return most;
}

size_t DeviceLanes::table_bytes(const Round& round) { return rows(round) * round.size() * sizeof(cuda::DeviceLane); }

size_t DeviceLanes::bytes() const {
  size_t all = 0;
  for (const Round& round : rounds) all += table_bytes(round);
  return all;
}

void DeviceLanes::write_table(const Round& round, uint32_t rank, cuda::DeviceLane* table) {
  const size_t channels = round.size();
  const cuda::DeviceLane nothing{nullptr, nullptr, 0, rank, cuda::kCopyLane, cuda::kNoLane, 0};
  for (size_t row = 0; row < rows(round); ++row)
    for (size_t channel = 0; channel < channels; ++channel)
      table[row * channels + channel] = row < round[channel].size() ? round[channel][row] : nothing;
}

}  // namespace treering
