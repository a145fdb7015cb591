// SPDX-License-Identifier: Apache-2.0
// What a rank over verbs locks in memory (pins), computed before any of it is. The kernel limits it for each process
// (RLIMIT_MEMLOCK, `ulimit -l`), but for one with CAP_IPC_LOCK.
//
//   staging memory | block for peer 1 | block for peer 2 | ...        and the regions that the user has registered
//
// Each rail locks all of it: what two devices have pinned the kernel counts twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "transport/transport.h"
#include "transport/verbs/wire.h"

namespace treering::verbs {

// Bytes that a link locks.
inline size_t block_bytes(const BlockLayout& layout) { return (layout.all_bytes() + 4095) / 4096 * 4096; }

// Staging memory: of each channel the part that is used from the beginning. Where that is not all, parts begin anywhere
// in a page, and the kernel counts whole pages.
inline size_t locked_staging(const AreaLayout& layout, size_t usual_bytes) {
  const bool is_all = usual_bytes == layout.staging_bytes;
  return layout.channels * (is_all ? usual_bytes : (usual_bytes + 4095) / 4096 * 4096 + 4096);
}

// With as many rails, of at most so many, and then places as fit into `available` bytes.
inline LockedMemory plan_locked_memory(const TransportSetup& setup, uint32_t most_rails, size_t available) {
  LockedMemory plan;
  plan.peers = setup.usual_peers;
  for (plan.rails = most_rails;; --plan.rails) {
    plan.staging_bytes = plan.rails * locked_staging(*setup.layout, setup.usual_staging_bytes);
    for (plan.places = kFifoDepth; plan.places >= kMinPlaces; --plan.places) {
      plan.peer_bytes = plan.rails * block_bytes({setup.layout->channels, setup.max_message_bytes, plan.places});
      if (plan.bytes() <= available) return plan;
    }
    if (plan.rails == 1) break;
  }
  plan.places = 0;
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

// What a rank of this process will lock, but has not locked yet. All ranks and communicators of the process share the
// limit: what one has planned is not there for another, nor for memory of the user. Any thread.
class LockedReservation {
 public:
  LockedReservation() = default;
  ~LockedReservation() { use(bytes_); }
  LockedReservation(const LockedReservation&) = delete;
  LockedReservation& operator=(const LockedReservation&) = delete;

  // Plans with what is left of `left` bytes, and sets that aside; once.
  template <typename Plan>
  LockedMemory make(size_t left, const Plan& plan) {
    std::lock_guard lock(mutex_);
    const LockedMemory made = plan(left == SIZE_MAX ? left : left - std::min(left, all_bytes_));
    if (made.places != 0) all_bytes_ += bytes_ = made.bytes();
    return made;
  }
  // So much of it was locked, or will not be.
  void use(size_t bytes) {
    std::lock_guard lock(mutex_);
    const size_t used = std::min(bytes, bytes_);
    bytes_ -= used;
    all_bytes_ -= used;
  }
  // By all of the process.
  static size_t reserved() {
    std::lock_guard lock(mutex_);
    return all_bytes_;
  }

 private:
  static inline std::mutex mutex_;
  static inline size_t all_bytes_ = 0;
  size_t bytes_ = 0;
};

}  // namespace treering::verbs
