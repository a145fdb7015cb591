// SPDX-License-Identifier: Apache-2.0
// The transport by cross-memory attach (cma.h): processes of one host that share no memory.
#pragma once

#include "transport/transport.h"

namespace treering {

std::unique_ptr<Transport> open_cma(const TransportSetup& setup);

}  // namespace treering
