// SPDX-License-Identifier: Apache-2.0
// GroupMemory: the areas (transport/area.h) of a communicator's ranks that this rank can look into: its own, and those of
// all ranks of its machine where they share a segment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "peers/area.h"
#include "peers/rank_info.h"

namespace treering {

class GroupMemory {
 public:
  GroupMemory() = default;
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  // Takes the descriptor of the host's segment; -1: there is none. Where it cannot be mapped, or `may_share` is false, the
  // own area lies in private memory. An error: there is no memory for that.
  Status map(const AreaLayout& layout, uint32_t rank, int descriptor, bool may_share, const std::string& job);

  bool is_mapped() const { return static_cast<bool>(own_); }
  const AreaLayout& layout() const { return *layout_; }
  const AreaView& own() const { return own_; }
  RankStatus* status() const { return status_of(own_); }
  // Whether the own area lies in the segment; what follows is for that case.
  bool is_shared() const { return segment_ != nullptr; }
  const std::shared_ptr<Segment>& segment() const { return segment_; }
  AreaView of(uint32_t rank) const { return layout_->view(segment_->base(), rank); }
  // The one of all ranks of the machine.
  FailureRecord* failure() const { return &reinterpret_cast<SegmentHeader*>(segment_->base())->failure; }
  // Empty: there are none.
  std::vector<MailboxMemory> mailboxes() const;

  // Writes where the area lies, and the nonce by which others prove that they reach it.
  void describe(RankInfo* own) const;
  // The pages come from that NUMA node, whichever rank touches them; those of few ranks at once.
  Status place(int32_t numa_node) const;
  // Every rank has opened the segment where it could.
  void close_descriptor() const;

 private:
  std::optional<AreaLayout> layout_;
  uint32_t rank_ = 0;
  std::shared_ptr<Segment> segment_;
  bool got_segment_ = false;          // its descriptor came, whether it could be mapped or not
  std::shared_ptr<Segment> private_;  // instead
  AreaView own_;
};

}  // namespace treering
