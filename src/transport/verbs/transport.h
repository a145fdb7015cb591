// SPDX-License-Identifier: Apache-2.0
// The transport by verbs (InfiniBand, RoCE): a queue pair to each peer (link.h), made when either rank first has to do
// with the other. In libtreering-verbs.so, which links libibverbs.
//
//   link --end point--> introduction --> introduced() --> the peer's link, made there and then
//
// docs/rdma.md has a message drawn, memory, limits and options.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace treering::verbs {

// An error: why this rank has no rail.
Status open_transport(const TransportSetup& setup, std::unique_ptr<Transport>* made);

}  // namespace treering::verbs
