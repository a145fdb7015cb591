// SPDX-License-Identifier: Apache-2.0
// Reduction kernels: one pass over memory from any number of sources to any number of destinations.
//
// Sources are combined left to right, element by element. All sources of an element are read before any of its
// destinations is written, so a destination may be identical to a source (never partly overlapping it).
// 16-bit floats are accumulated in float32 and rounded once, to nearest even, when stored; a source or a destination
// of such a type may be "wide": an array of float32 instead. NaN propagates in max and min. Integer sums and products
// wrap. avg divides the sum by `divisor` (integers: truncated toward zero).
#pragma once

#include <cstddef>
#include <cstdint>

#include "treering/treering.h"

namespace treering {

// How a source is read; bits.
enum SourceFlag : uint8_t {
  kWideSource = 1,     // it is float32 (narrow float types only)
  kScaledSource = 2,   // it is multiplied by `scale` first; of a narrow float type the product is rounded to it, as one
                       // that was sent is
  kRoundedSource = 4,  // it is float32 that is rounded to the narrow type, as one that was sent is
};

struct ReduceCall {
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
  uint32_t divisor = 1;  // applied once after the last source (avg on the step that completes it)
  const void* const* sources = nullptr;
  size_t source_count = 0;
  const uint8_t* source_flags = nullptr;  // SourceFlags of each source; nullptr: none has any
  void* const* destinations = nullptr;
  size_t destination_count = 0;
  uint64_t wide_destinations = 0;   // bit i: destination i is float32
  uint64_t streaming = 0;           // bit i: destination i is written with non-temporal stores; the caller issues
                                    // streaming_fence() before it tells another rank about the data
  size_t count = 0;                 // elements
  const void* scale = nullptr;      // one element of `type`, where some source is scaled
  bool round_wide = false;          // float32 destinations of a narrow type get the value rounded to that type
  trReduceFunction user = nullptr;  // combines instead of `op`: see collectives.h
  void* user_context = nullptr;

  uint8_t flags_of(size_t source) const { return source_flags == nullptr ? 0 : source_flags[source]; }
};

// Runs one call. With one source this is a copy (and a conversion where width differs; logical operations give 0 or 1).
void reduce(const ReduceCall& call);

// Copies bytes with non-temporal stores (streaming) or ordinary ones.
void copy(void* destination, const void* source, size_t bytes, bool streaming);

// Orders earlier non-temporal stores before every later release store.
void streaming_fence();

// Name of the instruction set that the kernels were dispatched to ("AVX3_SPR", "AVX2", ...).
const char* reduce_target();

}  // namespace treering
