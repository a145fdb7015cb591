// SPDX-License-Identifier: Apache-2.0
// Slicing: how the data of a call are cut, by the same few lines in every executor, host and device.
//
// Slices take their share of every part of the data; a part's share of a slice is `chunks_of_part` chunks of
// `chunk_elements` elements:
//
//   part      | slice 0 | slice 1 | slice 2 |        slice | chunk | chunk |        the last chunks of a part may be
//                                                                                   shorter, or empty
//
// All ranks of a call cut alike, so that both ends of a message mean the same elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "algorithms/expand.h"

namespace treering {

struct Slicing {
  size_t chunk_elements = 0;
  size_t slices = 1;
  uint32_t chunks_of_part = 1;
};

// What is cut: `elements` of the largest part, `blocks` parts in the larger buffer.
struct SlicedData {
  size_t elements = 0;
  size_t blocks = 1;
  size_t element_bytes = 1;
  uint32_t chunks = 1;  // of the schedule
  uint32_t parts = 1;
  uint32_t channels = 1;
};
// Slices of equal size, as many on every channel; chunks of at most `largest` elements that begin at multiples of
// `alignment` elements. Calls below `min_slice_bytes` a channel are one slice: channels only pay when there is work for
// each.
inline Slicing slice_data(const SlicedData& data, size_t largest, size_t alignment, size_t min_slice_bytes) {
  const auto divide_up = [](size_t value, size_t unit) { return (value + unit - 1) / unit; };
  Slicing cut;
  cut.chunks_of_part = data.chunks / data.parts;
  size_t slices = data.elements <= largest ? 1 : divide_up(data.elements, largest * cut.chunks_of_part);
  if (slices < 1) slices = 1;
  if (slices > 1 || data.elements * data.blocks * data.element_bytes >= data.channels * min_slice_bytes)
    slices = divide_up(slices, data.channels) * data.channels;
  cut.slices = slices;
  const size_t chunks = slices * cut.chunks_of_part;
  const size_t each = chunks == 1 ? data.elements : divide_up(data.elements, chunks);
  cut.chunk_elements = divide_up(each, alignment) * alignment;
  return cut;
}

// A run of elements of one part that a step covers.
struct Extent {
  uint32_t part;
  size_t begin;    // in the part
  size_t packed;   // in the message
  size_t scratch;  // in the scratch
  size_t count;
};

// The elements that a step's chunks have in a slice; consecutive chunks of one part are one extent.
// `Steps`: an Expansion; `part_count(part)`: elements of a part.
template <class Steps, class PartCount>
class ExtentWalk {
 public:
  TR_HOST_DEVICE ExtentWalk(const Slicing& slicing, size_t slice, const Steps& at, const PartCount& part_count)
      : slicing_(slicing), at_(at), part_count_(part_count), slice_(slice) {}

  TR_HOST_DEVICE bool next(Extent* extent) {
    extent->count = 0;
    const uint32_t span = at_.step().span;
    for (uint32_t previous = 0; i_ < span; ++i_) {
      const uint32_t chunk = at_.chunk(i_);
      const uint32_t part = slicing_.chunks_of_part == 1 ? chunk : chunk / slicing_.chunks_of_part;
      const size_t begin =
          (slice_ * slicing_.chunks_of_part + (chunk - part * slicing_.chunks_of_part)) * slicing_.chunk_elements;
      const size_t end = part_count_(part);
      const size_t rest = end > begin ? end - begin : 0;
      const size_t count = rest < slicing_.chunk_elements ? rest : slicing_.chunk_elements;
      if (extent->count > 0 && chunk == previous + 1 && part == extent->part) {
        extent->count += count;
      } else if (count > 0) {
        if (extent->count > 0) break;
        *extent = {part, begin, packed_, chunk * slicing_.chunk_elements, count};
      }
      previous = chunk;
      packed_ += count;
    }
    return extent->count > 0;
  }
  // Elements of the extents so far.
  TR_HOST_DEVICE size_t packed() const { return packed_; }

 private:
  const Slicing& slicing_;
  const Steps& at_;
  const PartCount& part_count_;
  size_t slice_;
  uint32_t i_ = 0;
  size_t packed_ = 0;
};

}  // namespace treering
