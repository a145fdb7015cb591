// SPDX-License-Identifier: Apache-2.0
// Area: the memory of one rank of one communicator that its peers look into. It has a head, which any peer may read at
// any time, and a body for those who exchange messages with it.
//
//   head   | status | nonce |                         status: OpenBuffers, then the executor's own (peers/area.h)
//   body   | region exports | mailbox | FIFOs, one for each sending peer and channel | staging |
//
// All ranks' areas have the same layout, so a peer's part is found at the same offset in the peer's area. The areas of
// the ranks that share memory lie in one segment (a memfd that every rank maps; each rank places its own body on its
// NUMA node):
//
//   | header | head 0 | head 1 | ... | body 0 | body 1 | ... |
//
// The heads are side by side, so that looking at a thousand ranks maps a few hundred pages. Memory that is not touched
// costs nothing, and of a body with room for every peer only what is used is touched. A rank that cannot map the
// segment keeps its area in private memory, where peers reach it by cross-memory attach.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"
#include "transport/memory/fifo.h"
#include "transport/open_buffers.h"
#include "transport/region.h"

namespace treering {

class AreaView;

// Sizes of the parts that transports do not look into.
struct AreaSizes {
  size_t status = 0;          // begins with OpenBuffers
  size_t mailbox = 0;         // of each rank
  size_t segment_header = 0;  // before the heads
};

struct AreaLayout {
  AreaLayout(uint32_t ranks, uint32_t channels, size_t staging_bytes, const AreaSizes& sizes);

  uint32_t ranks;
  uint32_t channels;
  size_t staging_bytes;                                // of one channel
  size_t nonce_offset, head_bytes;                     // in the head
  size_t mailbox_offset, fifo_offset, staging_offset;  // in the body, which begins with the exports
  size_t body_bytes, private_bytes;                    // multiples of the page size
  size_t heads_offset, bodies_offset, total_bytes;     // of the segment

  // A rank's area in the segment that begins at `base`.
  AreaView view(std::byte* base, uint32_t rank) const;
  // The area in private memory at `base`.
  AreaView private_view(std::byte* base) const;
  size_t fifo_offset_of(uint32_t sender, uint32_t channel) const {
    return fifo_offset + (size_t{sender} * channels + channel) * sizeof(Fifo);
  }
};

// One rank's area as seen from this process.
class AreaView {
 public:
  AreaView() = default;
  AreaView(std::byte* head, std::byte* body, const AreaLayout* layout) : head_(head), body_(body), layout_(layout) {}
  explicit operator bool() const { return head_ != nullptr; }
  std::byte* head() const { return head_; }
  std::byte* body() const { return body_; }
  const OpenBuffers* open_buffers() const { return reinterpret_cast<const OpenBuffers*>(head_); }
  uint64_t* nonce() const { return reinterpret_cast<uint64_t*>(head_ + layout_->nonce_offset); }
  RegionExport* exports() const { return reinterpret_cast<RegionExport*>(body_); }
  std::byte* mailbox() const { return body_ + layout_->mailbox_offset; }
  Fifo* fifo(uint32_t sender, uint32_t channel) const {
    return reinterpret_cast<Fifo*>(body_ + layout_->fifo_offset_of(sender, channel));
  }
  std::byte* staging() const { return body_ + layout_->staging_offset; }

 private:
  std::byte* head_ = nullptr;
  std::byte* body_ = nullptr;
  const AreaLayout* layout_ = nullptr;
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
