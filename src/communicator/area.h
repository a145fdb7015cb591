// Area: the memory of one rank of one communicator that its peers look into.
//
//   | RankStatus | region exports | mailbox | FIFOs, one for each sending peer and channel | staging |
//
// All ranks' areas have the same layout, so a peer's part is found at the same offset in the peer's area. The areas of
// the ranks that share memory are the consecutive parts of one segment (a memfd that every rank maps; each rank
// places its own area on its NUMA node). A rank that cannot map the segment keeps
// its area in private memory, where peers reach it by cross-memory attach.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "communicator/unique_id.h"
#include "executor/mailbox.h"
#include "transport/fifo.h"
#include "transport/rank_status.h"
#include "transport/region.h"

namespace treering {

struct AreaLayout {
  AreaLayout(uint32_t ranks, uint32_t channels, size_t staging_bytes);

  uint32_t ranks;
  uint32_t channels;
  size_t staging_bytes;  // of one channel
  size_t exports_offset, mailbox_offset, nonce_offset, fifo_offset, staging_offset;
  size_t area_bytes;   // a multiple of the page size
  size_t total_bytes;  // of the segment: a header page and the areas

  size_t area_offset(uint32_t rank) const;
  size_t fifo_offset_of(uint32_t sender, uint32_t channel) const {
    return fifo_offset + (size_t{sender} * channels + channel) * sizeof(Fifo);
  }
};

// First page of a segment.
struct SegmentHeader {
  FailureRecord failure;  // the communicator's verdict, the same for all ranks
};

// One rank's area as seen from this process.
class AreaView {
 public:
  AreaView(std::byte* base, const AreaLayout* layout) : base_(base), layout_(layout) {}
  std::byte* base() const { return base_; }
  RankStatus* status() const { return reinterpret_cast<RankStatus*>(base_); }
  RegionExport* exports() const { return reinterpret_cast<RegionExport*>(base_ + layout_->exports_offset); }
  MailboxMemory mailbox() const { return MailboxMemory(base_ + layout_->mailbox_offset, layout_->ranks); }
  uint64_t* nonce() const { return reinterpret_cast<uint64_t*>(base_ + layout_->nonce_offset); }
  Fifo* fifo(uint32_t sender, uint32_t channel) const {
    return reinterpret_cast<Fifo*>(base_ + layout_->fifo_offset_of(sender, channel));
  }
  std::byte* staging() const { return base_ + layout_->staging_offset; }

 private:
  std::byte* base_;
  const AreaLayout* layout_;
};

// A mapping of `bytes` bytes: of a segment's memfd (shared by all of this process's ranks of the job, so that every
// address means the same memory to all of them), or private.
class Segment {
 public:
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Takes ownership of the descriptor.
  static Status map_shared(const std::string& job, int descriptor, size_t bytes, std::shared_ptr<Segment>* segment);
  static Status map_private(size_t bytes, std::shared_ptr<Segment>* segment);

  std::byte* base() const { return base_; }
  int descriptor() const { return descriptor_; }
  uint64_t inode() const { return inode_; }
  // Once every rank has mapped it and proved that it can reach it; any thread, any number of times.
  void close_descriptor();

 private:
  Segment() = default;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<int> descriptor_ = -1;
  uint64_t inode_ = 0;
};

}  // namespace treering
