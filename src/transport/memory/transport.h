// SPDX-License-Identifier: Apache-2.0
// The transports by memory that both ranks map: threads of one process, and processes of one host with a shared
// segment.
#pragma once

#include "transport/transport.h"

namespace treering {

std::unique_ptr<Transport> open_in_process(const TransportSetup& setup);
std::unique_ptr<Transport> open_shared_memory(const TransportSetup& setup);

}  // namespace treering
