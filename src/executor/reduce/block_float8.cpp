// SPDX-License-Identifier: Apache-2.0
#include "executor/reduce/block_float8.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "executor/reduce/reduce.h"

namespace treering {
namespace {

constexpr size_t kTile = 2048;  // elements that are scaled at a time

// The conversions of the reduction kernels: one source, one destination.
void convert(trDataType_t type, const void* from, bool wide_from, void* to, bool wide_to, size_t count, bool round) {
  const uint8_t flags = wide_from ? kWideSource : 0;
  ReduceCall call;
  call.type = type;
  call.sources = &from;
  call.source_count = 1;
  call.source_flags = &flags;
  call.destinations = &to;
  call.destination_count = 1;
  call.wide_destinations = wide_to;
  call.round_wide = round;
  call.count = count;
  reduce(call);
}

struct Limits {
  float largest;
  // The scale of the largest blocks, and the largest value whose product with it is finite: above it rounding up would
  // leave the range of float32.
  float top_scale, top;
};
constexpr Limits kE4m3{448, 0x1p120f, 240}, kE5m2{57344, 0x1p113f, 28672};

float scale_of(const Limits& limits, const float* values, size_t count) {
  float most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[i]));  // NaN compares false: left out
  if (most == 0 || !std::isfinite(most)) return 1;
  // Apart from each other: of tiny values the quotient would be 0.
  int exponent = 0, largest_exponent = 0;
  const float fraction = std::frexp(most, &exponent), largest = std::frexp(limits.largest, &largest_exponent);
  exponent -= largest_exponent - (fraction > largest ? 1 : 0);
  return std::ldexp(1.0f, std::max(exponent, -126));  // its inverse is finite, too
}

}  // namespace

void encode_blocks(trDataType_t type, const float* values, size_t count, float* scales, std::byte* bytes) {
  const Limits& limits = type == trFloat8e4m3 ? kE4m3 : kE5m2;
  float scaled[kTile];
  for (size_t done = 0; done < count; done += kTile) {
    const size_t tile = std::min(kTile, count - done);
    for (size_t begin = 0; begin < tile; begin += kFloat8Block) {
      const size_t end = std::min(begin + kFloat8Block, tile);
      const float scale = scale_of(limits, values + done + begin, end - begin), inverse = 1 / scale;
      scales[(done + begin) / kFloat8Block] = scale;
      for (size_t i = begin; i < end; ++i) scaled[i] = values[done + i] * inverse;
      if (scale == limits.top_scale)
        for (size_t i = begin; i < end; ++i) scaled[i] = std::clamp(scaled[i], -limits.top, limits.top);
    }
    convert(type, scaled, true, bytes + done, false, tile, false);
  }
}

void decode_blocks(trDataType_t type, const float* scales, const std::byte* bytes, size_t count, float* values) {
  convert(type, bytes, false, values, true, count, false);
  for (size_t begin = 0; begin < count; begin += kFloat8Block) {
    const float scale = scales[begin / kFloat8Block];
    const size_t end = std::min(begin + kFloat8Block, count);
    for (size_t i = begin; i < end; ++i) values[i] *= scale;
  }
}

void round_with_feedback(trDataType_t wire, const float* values, size_t count, float* residual, float* adjusted) {
  const bool blocks = is_block_scaled(wire);
  float exact[kTile], scales[kTile / kFloat8Block];
  std::byte bytes[kTile];
  for (size_t done = 0; done < count; done += kTile) {
    const size_t tile = std::min(kTile, count - done);
    for (size_t i = 0; i < tile; ++i) exact[i] = values[done + i] + residual[done + i];
    if (blocks) {
      encode_blocks(wire, exact, tile, scales, bytes);
      decode_blocks(wire, scales, bytes, tile, adjusted + done);
    } else {
      convert(wire, exact, true, adjusted + done, true, tile, true);
    }
    for (size_t i = 0; i < tile; ++i) {
      const float rest = exact[i] - adjusted[done + i];
      residual[done + i] = std::isfinite(rest) ? rest : 0;  // an overflow is not carried on
    }
  }
}

}  // namespace treering
