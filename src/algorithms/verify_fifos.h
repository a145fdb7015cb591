// SPDX-License-Identifier: Apache-2.0
// FifoTable: the FIFOs between all ranks of a simulated run.
//
//   receiver      0            1
//   FIFO       0      1        2        ...     one for each pair that any list of any schedule names
//   sender     1      3        0
//
// FIFO numbers run through the receivers, inside one by sender, so the number of a pair is found by a binary
// search, mostly of one or two entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/schedule.h"

namespace treering {

// The abstract content of one chunk (verify.h).
struct Value {
  uint64_t ranks = 0;  // whose inputs: a bit mask (exact) or a sum of hashes with the count in the low 16 bits
  uint64_t order = 0;  // hash of the expression that made it: neither commutative nor associative
};

struct FifoMessage {
  uint32_t chunk = 0;
  bool final = false;
  bool input = false;  // the sender's input itself
  Value value;         // of a message of one chunk; longer ones use `more`, which spares the others an allocation
  std::vector<Value> more;
  std::vector<uint32_t> chunks;  // of a longer message, all of them

  uint32_t span() const { return more.empty() ? 1 : static_cast<uint32_t>(more.size()); }
  const Value& at(uint32_t i) const { return more.empty() ? value : more[i]; }
};

class FifoTable {
 public:
  void open(std::span<const Schedule> schedules, uint32_t depth) {
    depth_ = depth;
    const auto ranks = static_cast<uint32_t>(schedules.size());
    std::vector<uint64_t> links;
    for (const Schedule& schedule : schedules) collect(schedule, ranks, links);
    std::sort(links.begin(), links.end());
    links.erase(std::unique(links.begin(), links.end()), links.end());
    begin_.assign(ranks + 1, 0);
    for (uint64_t link : links) ++begin_[(link >> 32) + 1];
    for (uint32_t r = 0; r < ranks; ++r) begin_[r + 1] += begin_[r];
    for (uint64_t link : links) senders_.push_back(static_cast<uint32_t>(link));
    rings_.resize(links.size());
    slots_.resize(links.size() * depth);
  }

  uint64_t find(uint32_t receiver, uint32_t sender) const {
    auto first = senders_.begin() + static_cast<ptrdiff_t>(begin_[receiver]);
    auto last = senders_.begin() + static_cast<ptrdiff_t>(begin_[receiver + 1]);
    return static_cast<uint64_t>(std::lower_bound(first, last, sender) - senders_.begin());
  }
  // Number of the first FIFO into a rank; begin(ranks) is the number of FIFOs.
  uint64_t begin(uint32_t receiver) const { return begin_[receiver]; }
  uint32_t sender(uint64_t fifo) const { return senders_[fifo]; }

  uint32_t count(uint64_t fifo) const { return rings_[fifo].count; }
  bool has_room(uint64_t fifo) const { return rings_[fifo].count < depth_; }
  const FifoMessage& front(uint64_t fifo) const { return slots_[fifo * depth_ + rings_[fifo].head]; }
  void pop(uint64_t fifo) {
    Ring& ring = rings_[fifo];
    slots_[fifo * depth_ + ring.head].more = {};
    slots_[fifo * depth_ + ring.head].chunks = {};
    ring.head = ring.head + 1 == depth_ ? 0 : ring.head + 1;
    --ring.count;
  }
  // A new last message, to be filled in.
  FifoMessage& push(uint64_t fifo) {
    Ring& ring = rings_[fifo];
    return slots_[fifo * depth_ + (ring.head + ring.count++) % depth_];
  }

 private:
  struct Ring {
    uint32_t head = 0;
    uint32_t count = 0;
  };

  static void collect(const Schedule& schedule, uint32_t ranks, std::vector<uint64_t>& links) {
    const auto add = [&](uint32_t receiver, uint32_t sender) { links.push_back(uint64_t{receiver} << 32 | sender); };
    const auto add_step = [&](const Step& step, uint64_t offset) {
      const auto peer = [&](uint32_t i) { return static_cast<uint32_t>((schedule.peers[i] + offset) % ranks); };
      for (uint32_t i = 0; i < step.receive_count; ++i) add(schedule.rank, peer(step.receive_first + i));
      for (uint32_t i = 0; i < step.send_count; ++i) add(peer(step.send_first + i), schedule.rank);
    };
    for (const Block& block : schedule.blocks) {
      // Without a peer stride all repetitions name the same peers.
      const int64_t n = ranks;
      const auto stride = static_cast<uint64_t>(((block.peer_stride % n) + n) % n);
      for (uint64_t k = 0; k < (stride == 0 ? 1 : block.count); ++k)
        for (uint32_t i = 0; i < block.length; ++i) add_step(schedule.steps[block.first + i], k * stride % ranks);
    }
  }

  uint32_t depth_ = 1;
  std::vector<uint64_t> begin_;
  std::vector<uint32_t> senders_;
  std::vector<Ring> rings_;
  std::vector<FifoMessage> slots_;
};

}  // namespace treering
