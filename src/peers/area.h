// SPDX-License-Identifier: Apache-2.0
// What lies in the parts of a rank's area (transport/area.h) that transports do not know: its status and its mailbox,
// and before all areas of a segment the failure that its ranks share.
#pragma once

#include <algorithm>

#include "executor/mailbox.h"
#include "executor/rank_status.h"
#include "transport/area.h"

namespace treering {

// First page of a segment.
struct SegmentHeader {
  FailureRecord failure;  // the communicator's, the same for all ranks
};

inline AreaLayout area_layout(uint32_t ranks, uint32_t channels, size_t staging_bytes) {
  return {ranks,
          channels,
          staging_bytes,
          {sizeof(RankStatus), ranks <= kMaxMailboxRanks ? MailboxMemory::bytes(ranks) : 0, sizeof(SegmentHeader)}};
}
// Channels that the algorithms want at most, on one host and on several.
inline constexpr uint32_t kChannelsOfOneHost = 2;
inline constexpr uint32_t kChannelsOfHosts = 4;

// Staging memory of a rank: all ranks' together fill a quarter of the last-level cache, within limits. Measured with
// two-shot at 16 MiB and up on 4 ranks and 105 MiB of cache: 2 MiB a rank 20 ms, 6.5 MiB 15.5 ms, 16 MiB 17.5 ms for
// 64 MiB.
inline size_t default_staging(uint32_t ranks, size_t cache_bytes) {
  return std::clamp<size_t>(cache_bytes / 4 / ranks, 2 << 20, 8 << 20);
}
// ... of one of its channels. Slots never fall below a few KiB however many ranks there are. With many ranks few slots
// are ever used, so that their size costs addresses and no memory, and fewer, larger messages mean fewer turns on a
// shared core.
inline size_t staging_of_channel(uint32_t ranks, uint32_t channels, size_t staging_bytes) {
  constexpr size_t kMinSlot = 4 << 10, kMinSlotOfMany = 16 << 10;
  constexpr uint32_t kMany = 64;
  const size_t slots = std::max<size_t>(4, size_t{2} * (ranks - 1));
  return std::max(staging_bytes / channels, slots * (ranks > kMany ? kMinSlotOfMany : kMinSlot));
}

inline RankStatus* status_of(const AreaView& area) { return reinterpret_cast<RankStatus*>(area.head()); }
inline MailboxMemory mailbox_of(const AreaView& area, uint32_t ranks) { return MailboxMemory(area.mailbox(), ranks); }

}  // namespace treering
