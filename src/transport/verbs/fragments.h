// SPDX-License-Identifier: Apache-2.0
// How a payload is divided over the rails of a link: as over the streams of TCP, so that all are through with it at the
// same time. No I/O.
//
//   rail 0, 100 Gbit/s   | fragment 0, with the header |
//   rail 1, 100 Gbit/s   | fragment 1                  |
//   rail 2,  50 Gbit/s   | fragment 2  |
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "transport/verbs/wire.h"

namespace treering::verbs {

// Smaller payloads go whole by one rail; as over TCP.
inline constexpr uint32_t kMinDivided = 32 << 10;
// Fragments begin at multiples of it: a device writes whole lines of the cache.
inline constexpr uint32_t kFragmentUnit = 256;
// No rail is taken to be slower than the fastest by more, or faster than that in Mbit/s, whatever a peer says.
inline constexpr uint32_t kMaxRatio = 8, kMaxRate = 1u << 28;

struct Fragment {
  uint32_t offset = 0, bytes = 0;
};
using Fragments = std::array<Fragment, kMaxRails>;

// Divides `bytes` by the rates of the rails; fragment 0 is that of the rail `first`, fragment 1 that of the one after
// it, and so on, around. Returns how many fragments there are: none is empty.
inline uint32_t divide(uint32_t bytes, std::span<const uint32_t> rates, uint32_t first, uint32_t least_divided,
                       Fragments* fragments) {
  const auto rails = static_cast<uint32_t>(rates.size());
  (*fragments)[0] = {0, bytes};
  if (rails < 2 || bytes < least_divided) return 1;
  const uint32_t most = std::min(kMaxRate, *std::max_element(rates.begin(), rates.end()));
  const uint32_t least = std::max(1u, most / kMaxRatio);
  const auto rate = [&](uint32_t fragment) {
    return std::clamp(rates[(first + fragment) % rails], least, std::max(most, least));
  };
  uint64_t all = 0, so_far = 0;
  for (uint32_t fragment = 0; fragment < rails; ++fragment) all += rate(fragment);
  Fragments made{};
  uint32_t begin = 0;
  for (uint32_t fragment = 0; fragment < rails; ++fragment) {
    so_far += rate(fragment);
    const uint64_t end = (bytes * so_far / all + kFragmentUnit / 2) / kFragmentUnit * kFragmentUnit;
    made[fragment] = {begin,
                      static_cast<uint32_t>(fragment + 1 == rails ? bytes : std::min<uint64_t>(end, bytes)) - begin};
    if (made[fragment].bytes == 0) return 1;
    begin += made[fragment].bytes;
  }
  *fragments = made;
  return rails;
}

}  // namespace treering::verbs
