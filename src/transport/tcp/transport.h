// SPDX-License-Identifier: Apache-2.0
// The transport by TCP streams (link.h), each opened by an introduction that has its name:
//
//   link --open_stream(peer, stream)-> introduction with a socket --> connected() --> link
//                                                                 --> introduced() --> the peer's link
//
// A link is made when the rank first has to do with the peer. What comes for it before is kept: streams that the peer
// has opened, and that it has left.
#pragma once

#include "transport/tcp/wire.h"
#include "transport/transport.h"

namespace treering {

std::unique_ptr<Transport> open_tcp(const TransportSetup& setup);
// The options of TCP.
Status check_tcp(const Config& config);

}  // namespace treering
