// Cross-memory attach: messages between processes that can read and write each other's memory through the kernel
// (process_vm_readv and process_vm_writev), without any shared mapping.
//
// The FIFO lines lie in the receiver's private memory and are written there by the sender; the counter of pops lies
// beside them and is read back by the sender when it needs it. Payloads are fetched by the receiver straight from the
// sender's user or staging memory into its own.
#pragma once

#include "transport/fifo.h"

namespace treering {

// Where a rank's private transport memory lies, as its peers address it.
struct CmaAddress {
  int pid = 0;
  uint64_t fifo = 0;     // the peer's Fifo that this side posts into
  uint64_t staging = 0;  // base of the peer's staging memory
  uint64_t status = 0;   // the peer's RankStatus
};

std::unique_ptr<Connection> connect_cma(const CmaAddress& peer, Fifo* incoming);

// Reads or writes memory of another process; the message of a failure has the errno and what usually causes it.
Status cma_read(int pid, uint64_t address, void* destination, size_t bytes);
Status cma_write(int pid, uint64_t address, const void* source, size_t bytes);

}  // namespace treering
