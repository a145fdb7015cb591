// SPDX-License-Identifier: Apache-2.0
// How a payload is divided over the rails of a link: as over the streams of TCP, so that all are through with it at the
// same time. No I/O.
//
//   rail 0, 100 Gbit/s   | piece 0, with the header |
//   rail 1, 100 Gbit/s   | piece 1                |
//   rail 2,  50 Gbit/s   | piece 2   |
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "transport/verbs/wire.h"

namespace treering::verbs {

// Smaller payloads go whole by one rail; as over TCP.
inline constexpr uint32_t kMinDivided = 32 << 10;
// Pieces begin at multiples of it: a device writes whole lines of the cache.
inline constexpr uint32_t kPieceUnit = 256;
// No rail is taken to be slower than the fastest by more, or faster than that in Mbit/s, whatever a peer says.
inline constexpr uint32_t kMaxRatio = 8, kMaxRate = 1u << 28;

struct Piece {
  uint32_t offset = 0, bytes = 0;
};
using Pieces = std::array<Piece, kMaxRails>;

// Divides `bytes` by the rates of the rails; piece 0 is that of the rail `first`, piece 1 that of the one after it, and
// so on, around. Returns how many pieces there are: none is empty.
inline uint32_t divide(uint32_t bytes, std::span<const uint32_t> rates, uint32_t first, uint32_t least_divided,
                       Pieces* pieces) {
  const auto rails = static_cast<uint32_t>(rates.size());
  (*pieces)[0] = {0, bytes};
  if (rails < 2 || bytes < least_divided) return 1;
  const uint32_t most = std::min(kMaxRate, *std::max_element(rates.begin(), rates.end()));
  const uint32_t least = std::max(1u, most / kMaxRatio);
  const auto rate = [&](uint32_t piece) {
    return std::clamp(rates[(first + piece) % rails], least, std::max(most, least));
  };
  uint64_t all = 0, so_far = 0;
  for (uint32_t piece = 0; piece < rails; ++piece) all += rate(piece);
  Pieces made{};
  uint32_t begin = 0;
  for (uint32_t piece = 0; piece < rails; ++piece) {
    so_far += rate(piece);
    const uint64_t end = (bytes * so_far / all + kPieceUnit / 2) / kPieceUnit * kPieceUnit;
    made[piece] = {begin, static_cast<uint32_t>(piece + 1 == rails ? bytes : std::min<uint64_t>(end, bytes)) - begin};
    if (made[piece].bytes == 0) return 1;
    begin += made[piece].bytes;
  }
  *pieces = made;
  return rails;
}

}  // namespace treering::verbs
