// SPDX-License-Identifier: Apache-2.0
// How the kernel sends on TCP sockets: those of the control tree, and those that become streams of a transport.
//
// BBR paces by a model of the path that it learns from a flow which never stops. Ranks send in bursts and wait for one
// another; on short paths Reno was the faster and the steadier one (docs/tcp.md, figures). On long ones, where Reno
// takes half a window's round trips to be back after a loss, the system's choice stays.
//
// A socket that was BBR stays paced by the kernel under any other control. So sockets begin with Reno, before they are
// connected, and a stream whose path turns out to be long goes to BBR.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace treering {

// How a connection of the control tree sends, and asks to be connected: at once, and after an outage again within a
// second, the first times every 200 ms. Before connect(). Where nothing is sent, the kernel asks each second whether the
// other side still has the connection: a firewall may reset that side alone, and then an answer never comes.
void prepare_control(int fd);
void set_keepalive(int fd, bool on);
// What is not acknowledged is sent again so often at least; the kernel doubles the time between two attempts, and after
// an outage might wait as long again as the outage took. False: it does not know how (before Linux 6.15).
bool set_longest_resend(int fd, int ms);

// Whether this process may use a congestion control of that name; the error names those that it may.
Status check_congestion_control(const std::string& name);
// The one of a socket; empty where it has none.
std::string congestion_control(int fd);
bool set_congestion_control(int fd, const std::string& name);
// The system's choice where that is BBR, else empty. Found out once.
const std::string& system_bbr();
// For a socket that is not connected yet, or listens: those that it accepts begin as it is.
void begin_unpaced(int fd);
// Whether the shortest round trip that the kernel has seen on the socket is `long_us` or more.
bool is_long_path(int fd, uint32_t long_us);

}  // namespace treering
