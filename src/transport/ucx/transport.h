// SPDX-License-Identifier: Apache-2.0
// The transport over UCX: active messages between the workers of the ranks (hub.h). In libtreering-ucx.so, which links
// UCX.
//
// docs/ucx.md has a message drawn, what UCX needs and changes, limits and options.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace treering::ucx {

// An error: why this rank has no worker.
Status open_transport(const TransportSetup& setup, std::unique_ptr<Transport>* made);

}  // namespace treering::ucx
