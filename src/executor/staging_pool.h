// SPDX-License-Identifier: Apache-2.0
// StagingPool: the slots of one channel's staging memory, through which values that lie in no peer-readable buffer
// travel. One slot may be read by several peers.
//
//   | slot 0 | slot 1 | ... | not opened yet ... |      room for two slots for each peer: an empty FIFO always finds a
//                                                     free slot, so the pool never blocks where FIFO depth 1 would not
//
// A slot is free when every message that refers to it has been released; the pool asks the connections, newest
// knowledge first, and no rank has to give a slot back. Only some of many slots are open. They are used in turn; when
// none of them is free, more are opened. So a rank with a thousand peers, of which it uses ten, touches little memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/connection.h"

namespace treering {

class StagingPool {
 public:
  static constexpr int kNone = -1;

  StagingPool() = default;
  StagingPool(std::byte* memory, size_t offset, size_t bytes, uint32_t peers);

  // The size of a slot, where `bytes` of memory are shared out among so many peers.
  static size_t slot_bytes_of(size_t bytes, uint32_t peers);
  // How much of it is used from the beginning; more is where none of that is free.
  static size_t usual_bytes(size_t bytes, uint32_t peers);
  size_t slot_bytes() const { return slot_bytes_; }
  std::byte* slot(int index) const { return memory_ + static_cast<size_t>(index) * slot_bytes_; }
  // Offset of a slot in the rank's staging memory, as messages name it.
  uint64_t slot_offset(int index) const { return offset_ + static_cast<size_t>(index) * slot_bytes_; }
  uint32_t open_slots() const { return static_cast<uint32_t>(readers_.size()); }

  // A free slot, or kNone.
  int find_free();
  // Marks the slot as used from now on, without readers yet.
  void use(int index) {
    readers_[static_cast<size_t>(index)].clear();
    next_ = static_cast<uint32_t>(index) + 1 == open_slots() ? 0 : static_cast<uint32_t>(index) + 1;
  }
  // The message posted last on `connection`, to `peer`, refers to the slot.
  void add_reader(int index, uint32_t peer, Connection* connection) {
    readers_[static_cast<size_t>(index)].push_back({connection, connection->posted(), peer});
  }
  // A peer that has not read the slot whose turn is next; after find_free() has found none.
  uint32_t awaited_peer() const { return readers_[next_].back().peer; }

 private:
  struct Reader {
    Connection* connection;
    uint64_t target;
    uint32_t peer;
  };
  bool is_free(uint32_t index);
  void open(uint32_t slots);

  std::byte* memory_ = nullptr;
  uint64_t offset_ = 0;
  size_t slot_bytes_ = 0;
  uint32_t slots_ = 0;  // at most
  uint32_t peers_ = 0;
  uint32_t next_ = 0;
  std::vector<std::vector<Reader>> readers_;  // of the open slots; capacity reserved, no allocation later
};

}  // namespace treering
