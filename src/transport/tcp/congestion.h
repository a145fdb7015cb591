// SPDX-License-Identifier: Apache-2.0
// Which congestion control a link's streams have (core/tcp_sockets.h says why there are two).
#pragma once

#include <cstdint>
#include <string>

#include "core/tcp_sockets.h"

namespace treering {

// Round trips from here on are of a long path.
inline constexpr uint32_t kLongPathUs = 500;

struct TcpCongestion {
  std::string all;      // of all streams; empty: as their sockets come
  std::string if_long;  // else of streams of large messages whose path is long; empty: as their sockets come
  uint32_t long_us = kLongPathUs;
};

}  // namespace treering
