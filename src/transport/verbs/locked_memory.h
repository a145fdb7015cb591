// SPDX-License-Identifier: Apache-2.0
// What a rank over verbs locks in memory (pins), computed before any of it is. The kernel limits it for each process
// (RLIMIT_MEMLOCK, `ulimit -l`), but for one with CAP_IPC_LOCK.
//
//   staging memory | block for peer 1 | block for peer 2 | ...        and the regions that the user has registered
//
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "transport/verbs/wire.h"

namespace treering::verbs {

// Bytes that a link locks: what the peer writes into, and as much as the lines of it for this rank's own.
inline size_t block_bytes(const BlockLayout& layout) {
  return (layout.bytes() + layout.places_offset() + 4095) / 4096 * 4096;
}

struct LockedMemory {
  size_t staging_bytes = 0;
  size_t peer_bytes = 0;
  uint32_t peers = 0;   // that a rank usually has, at most
  uint32_t places = 0;  // of a channel of a peer; 0: not even the fewest can be had

  size_t bytes() const { return staging_bytes + peers * peer_bytes; }
};

// With as many places as fit into `available` bytes.
inline LockedMemory plan_locked_memory(uint32_t peers, uint32_t channels, size_t staging_bytes, size_t place_bytes,
                                       size_t available) {
  LockedMemory plan{staging_bytes, 0, peers, kFifoDepth + 1};
  do {
    plan.peer_bytes = block_bytes({channels, place_bytes, --plan.places});
  } while (plan.bytes() > available && plan.places > kFewestPlaces);
  if (plan.bytes() > available) plan.places = 0;
  return plan;
}

// What the kernel lets this process lock.
struct LockedLimit {
  size_t limit = SIZE_MAX;  // SIZE_MAX: there is none
  size_t locked = 0;        // already

  size_t left() const { return limit == SIZE_MAX ? SIZE_MAX : limit - std::min(limit, locked); }
  // "this process may lock 64 KiB of memory (ulimit -l), and has locked 12 KiB"
  std::string text() const;
};
LockedLimit locked_limit();
// For an error of a device that could not lock memory: the limit, and what to do.
std::string locked_memory_text();
// The soft limit becomes the hard one.
void raise_locked_limit();

}  // namespace treering::verbs
