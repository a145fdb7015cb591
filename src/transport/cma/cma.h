// SPDX-License-Identifier: Apache-2.0
// Cross-memory attach: messages between processes that can read and write each other's memory through the kernel
// (process_vm_readv and process_vm_writev), without any shared mapping.
//
// Each side writes only into the other's private memory and polls its own: the FIFO slots of its messages, and (Fifo::
// acknowledged) how many messages of the other it has popped. Payloads are fetched by the receiver straight from the
// sender's user or staging memory. So a sender may leave as soon as everything is acknowledged, and a receiver as soon
// as it has popped: no rank looks into the memory of one that has nothing left to do.
#pragma once

#include "transport/memory/fifo.h"

namespace treering {

// Where a rank's private transport memory lies, as its peers address it.
struct CmaAddress {
  int pid = 0;
  uint64_t fifo = 0;     // the peer's Fifo of this side's messages
  uint64_t staging = 0;  // base of the peer's staging memory
};

std::unique_ptr<Connection> connect_cma(const CmaAddress& peer, Fifo* incoming);

// Reads or writes memory of another process; the message of a failure has the errno and what usually causes it.
Status cma_read(int pid, uint64_t address, void* destination, size_t bytes);
Status cma_write(int pid, uint64_t address, const void* source, size_t bytes);

}  // namespace treering
