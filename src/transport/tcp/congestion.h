// SPDX-License-Identifier: Apache-2.0
// Congestion control of a link's streams: how fast the kernel sends what it was given.
//
// BBR paces by a model of the path that it learns from a flow which never stops. Ranks send in bursts and wait for one
// another; on short paths Reno was the faster and the steadier one (docs/tcp.md, figures). On long ones, where Reno takes
// half a window's round trips to be back after a loss, the system's choice stays.
//
// A socket that was BBR stays paced by the kernel under any other control. So sockets begin with Reno, before they are
// connected, and a stream whose path turns out to be long goes to BBR.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace treering {

// Round trips from here on are of a long path.
inline constexpr uint32_t kLongPathUs = 500;

struct TcpCongestion {
  std::string all;      // of all streams; empty: as their sockets come
  std::string if_long;  // else of streams of large messages whose path is long; empty: as their sockets come
  uint32_t long_us = kLongPathUs;
};

// Whether this process may use a congestion control of that name; the error names those that it may.
Status check_congestion_control(const std::string& name);

// Of a socket; empty where it has none.
std::string congestion_control(int fd);
bool set_congestion_control(int fd, const std::string& name);

// The system's choice where that is BBR, else empty. Found out once.
const std::string& system_bbr();
// Of a socket that is not connected yet, or listens: those that it accepts begin as it is.
void begin_unpaced(int fd);
// Whether the shortest round trip that the kernel has seen on the socket is `long_us` or more.
bool is_long_path(int fd, uint32_t long_us);

}  // namespace treering
