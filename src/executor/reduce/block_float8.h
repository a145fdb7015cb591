// SPDX-License-Identifier: Apache-2.0
// Block-scaled float8: float32 values as 8-bit floats with a scale for every kBlock of them, for messages.
//
//   | scale 0 | scale 1 | ... | kBlock bytes | kBlock bytes | ... |      scales (float32) first
//
// The scale of a block is the least power of two that brings its largest magnitude into the type's range (e4m3: 448,
// e5m2: 57344), so scaling itself is exact. Error bound: every element is off by at most 2^-4 (e4m3) or 2^-3 (e5m2) of
// itself, or, if it is tiny within its block, by 2^-17 (e4m3) or 2^-31 (e5m2) of the block's largest magnitude.
// Blocks whose largest magnitude is below 448 x 2^-126 (e4m3) or 57344 x 2^-126 (e5m2) have the scale 2^-126: what is
// tiny there is off by at most 2^-136 or 2^-143. No finite value becomes infinite: next to the end of float32's range
// values are rounded down.
// Encoding a decoded block again changes nothing. NaN stays NaN; a block with an infinity has scale 1, where e4m3,
// which has no infinity, makes it NaN.
#pragma once

#include <cstddef>

#include "treering/treering.h"

namespace treering {

inline constexpr size_t kFloat8Block = 128;

constexpr bool is_block_scaled(trDataType_t wire) { return wire == trFloat8e4m3 || wire == trFloat8e5m2; }

constexpr size_t encoded_bytes(size_t count) {
  return (count + kFloat8Block - 1) / kFloat8Block * sizeof(float) + count;
}

// Elements [begin, begin + count) of a message of `total`; begin is a multiple of kFloat8Block. The message's scales
// and bytes are found at `scales` and `bytes`, which point to those of element `begin`.
void encode_blocks(trDataType_t type, const float* values, size_t count, float* scales, std::byte* bytes);
void decode_blocks(trDataType_t type, const float* scales, const std::byte* bytes, size_t count, float* values);

// adjusted = values + residual, rounded as it will travel; residual = what the rounding took. `wire` is a narrow float
// type; float8 with scales. In tiles that begin at multiples of kFloat8Block of the tensor.
void round_with_feedback(trDataType_t wire, const float* values, size_t count, float* residual, float* adjusted);

}  // namespace treering
