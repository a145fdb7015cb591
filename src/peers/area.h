// SPDX-License-Identifier: Apache-2.0
// What lies in the parts of a rank's area (transport/area.h) that transports do not know: its status and its mailbox,
// and before all areas of a segment the failure that its ranks share.
#pragma once

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
inline RankStatus* status_of(const AreaView& area) { return reinterpret_cast<RankStatus*>(area.head()); }
inline MailboxMemory mailbox_of(const AreaView& area, uint32_t ranks) { return MailboxMemory(area.mailbox(), ranks); }

}  // namespace treering
