// SPDX-License-Identifier: Apache-2.0
#include "peers/group_memory.h"

#include <unistd.h>

#include "core/log.h"
#include "peers/placement.h"
#include "topology/place.h"

namespace treering {
namespace {

constexpr uint32_t kMaxPlaced = 32;  // ranks, of which each will use all of its area

}  // namespace

Status GroupMemory::map(const AreaLayout& layout, uint32_t rank, int descriptor, bool may_share,
                        const std::string& job) {
  layout_.emplace(layout);
  rank_ = rank;
  if (descriptor >= 0 && !may_share) {
    close(descriptor);
    descriptor = -1;
  }
  got_segment_ = descriptor >= 0;
  if (got_segment_)
    if (Status status = Segment::map_shared(job, descriptor, layout_->total_bytes, &segment_); !status.ok())
      log_line(LogLevel::kWarn, "shared memory cannot be used: " + status.message());
  if (segment_) {
    own_ = of(rank);
    return {};
  }
  TR_RETURN_IF_ERROR(Segment::map_private(layout_->private_bytes, &private_));
  own_ = layout_->private_view(private_->base());
  return {};
}

std::vector<MailboxMemory> GroupMemory::mailboxes() const {
  std::vector<MailboxMemory> all;
  const uint32_t ranks = layout_->ranks;
  if (!is_shared() || ranks > kMaxMailboxRanks) return all;
  for (uint32_t rank = 0; rank < ranks; ++rank) all.push_back(mailbox_of(of(rank), ranks));
  return all;
}

void GroupMemory::describe(RankInfo* own) const {
  own->head_address = reinterpret_cast<uint64_t>(own_.head());
  own->body_address = reinterpret_cast<uint64_t>(own_.body());
  own->segment_descriptor = segment_ ? segment_->descriptor() : -1;
  own->segment_inode = segment_ ? segment_->inode() : 0;
  own->got_segment = got_segment_;
  own->in_segment = is_shared();
  *own_.nonce() = own->nonce;
}

Status GroupMemory::place(int32_t numa_node) const {
  if (!has_numa_nodes()) numa_node = -1;
  return layout_->ranks <= kMaxPlaced ? place_memory(own_.body(), layout_->body_bytes, numa_node)
                                      : bind_memory(own_.body(), layout_->body_bytes, numa_node);
}

void GroupMemory::close_descriptor() const {
  if (segment_) segment_->close_descriptor();
}

}  // namespace treering
