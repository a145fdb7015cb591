// SPDX-License-Identifier: Apache-2.0
// Mapped transports: both ranks map the memory that the FIFOs and the staging areas live in.
//
// "in-process" (ranks are threads of one process: every address of the peer is valid here) and "shared-memory" (ranks
// are processes: registered regions are mapped on first use) differ only in how they reach a peer's user memory.
#pragma once

#include "transport/memory/fifo.h"
#include "transport/open_buffers.h"
#include "transport/region.h"

namespace treering {

// What a mapped connection is built on; all memory outlives the connection.
struct MappedEndpoint {
  Fifo* outgoing = nullptr;
  Fifo* incoming = nullptr;
  const std::byte* peer_staging = nullptr;
  const OpenBuffers* peer_buffers = nullptr;
  PeerRegions* peer_regions = nullptr;  // nullptr: the peer's regions cannot be mapped; shared by all channels
  int fetch_pid = 0;  // of the peer, where each side may read the other's memory through the kernel (cma.h); else 0
};

std::unique_ptr<Connection> connect_in_process(const MappedEndpoint& endpoint);
std::unique_ptr<Connection> connect_shared_memory(const MappedEndpoint& endpoint);

}  // namespace treering
