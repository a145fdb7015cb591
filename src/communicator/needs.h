// SPDX-License-Identifier: Apache-2.0
// What communicators would need, without making one.
#pragma once

#include <vector>

#include "transport/transport.h"

namespace treering {

struct TransportNeeds {
  const char* transport = nullptr;
  LockedMemory locked;
};

// What each of so many ranks, on hosts of their own, would lock in memory over the transports that do, with the
// configuration's defaults. cache_bytes: of a host's last-level cache; 0: of this machine's.
// Over as many rails as `rails`, or as the transport can use.
std::vector<TransportNeeds> transport_needs(uint32_t ranks, size_t cache_bytes, uint32_t rails = 1);

}  // namespace treering
