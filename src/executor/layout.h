// SPDX-License-Identifier: Apache-2.0
// Layout: where the parts of a collective (collective.h) lie in one rank's buffers.
//
//   allgatherv, rank 1:   part       0        1      2
//                         input               | a a |              input_offset(1) = 0
//                         output   | b b b |  | a a | | |          output_offset(p) = offsets[p]
//
// A View is a buffer as a sequence of elements: one range of memory, or several one after another (fused tensors,
// rows of boxes). Offsets are element numbers of the view.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/collective.h"
#include "transport/region.h"

namespace treering {

// A range of memory that holds the view's elements from `first` on, up to the next segment's first.
struct BufferSegment {
  std::byte* base;
  size_t first;
  Region region{};  // id 0: ordinary memory
};

class View {
 public:
  struct Run {
    std::byte* data;
    size_t count;                    // elements that follow one another at `data`
    const Region* region = nullptr;  // of the segment; nullptr: the buffer is contiguous
  };

  View() = default;
  explicit View(const void* base) : base_(static_cast<std::byte*>(const_cast<void*>(base))) {}
  // `segments` ascend, the first at 0; they outlive the view.
  explicit View(std::span<const BufferSegment> segments) : segments_(segments) {}

  bool is_contiguous() const { return segments_.empty(); }
  std::byte* base() const { return base_; }
  // The elements from `element` on, at most `count`. (Sums of integers: a view may count from address 0.)
  Run run(size_t element, size_t count, size_t element_bytes) const {
    if (segments_.empty()) return {at(base_, element * element_bytes), count};
    auto next = std::upper_bound(segments_.begin(), segments_.end(), element,
                                 [](size_t e, const BufferSegment& s) { return e < s.first; });
    const BufferSegment& segment = *(next - 1);
    size_t end = next == segments_.end() ? element + count : next->first;
    return {at(segment.base, (element - segment.first) * element_bytes), std::min(count, end - element),
            &segment.region};
  }

 private:
  static std::byte* at(std::byte* base, size_t bytes) {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(base) + bytes);
  }

  std::byte* base_ = nullptr;
  std::span<const BufferSegment> segments_;
};

// Counts and offsets of parts that differ, in elements, an entry a part (kRanks). Every rank knows all counts.
struct UnequalParts {
  const size_t* counts = nullptr;
  const size_t* offsets = nullptr;  // in the buffer that has all parts
  size_t largest = 0;               // of the counts
};

struct Layout {
  const CollectiveInfo* collective = &info_of(Collective::kAllReduce);
  uint32_t rank = 0;
  uint32_t ranks = 1;
  uint32_t root = 0;
  size_t count = 0;  // elements of every part, unless:
  const UnequalParts* unequal = nullptr;

  size_t part_count(uint32_t part) const { return unequal == nullptr ? count : unequal->counts[part]; }
  size_t input_offset(uint32_t part) const { return offset(part, collective->input_index); }
  size_t output_offset(uint32_t part) const { return offset(part, collective->output_index); }
  // Where a peer stores the part, if that follows from what all ranks know.
  size_t output_offset_on(uint32_t part) const { return block_index(collective->output_index, part, ranks) * count; }
  size_t largest_part() const { return unequal == nullptr ? count : unequal->largest; }

 private:
  size_t offset(uint32_t part, BlockIndex index) const {
    if (unequal == nullptr) return block_index(index, part, ranks) * count;
    return CollectiveInfo::holds_all(index) ? unequal->offsets[part] : 0;
  }
};

// A row of messages between this rank and one peer, one way, apart from all other lanes of a call: a schedule of one
// step, run for each item in turn. Both sides know each item's count.
struct LaneItem {
  View input, output;  // of the side that the lane has; both where a rank sends to itself
  size_t count = 0;
  Region region;  // of the input
};
struct Lane {
  const struct Schedule* schedule = nullptr;
  std::span<const LaneItem> items;
};

}  // namespace treering
