// SPDX-License-Identifier: Apache-2.0
// What a link knows of the messages of a channel that it sends. No I/O.
//
//   | m4 | m5 | m6 | m7 | m8 |      the peer's places, at most kFifoDepth, used in turn
//     ^freed    ^sent     ^posted
//
// `freed`: the peer has popped so many. `sent`: the devices have so many. Payloads are released when the devices have
// written them, which completions tell: those of one rail in order, those of several in any.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/connection.h"
#include "transport/verbs/wire.h"

namespace treering::verbs {

// What a work request sends.
struct Source {
  const void* data = nullptr;
  uint32_t bytes = 0;
  uint32_t key = 0;  // of the memory it lies in
};

struct Payload {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  RailKeys keys{};
};

struct Outgoing {
  Payload payload;
  uint64_t output = 0;  // address in the peer's output; 0: the payload goes into the place
  RailKeys output_keys{};
  uint32_t header_bytes = 0;  // with an inline payload
};

struct Sending {
  uint64_t posted = 0, sent = 0, freed = 0;
  uint64_t with_payload = 0;  // number + 1 of the last message that has one
  // By rail: number + 1 of the last message of which it was given a fragment. Where it is as high in `written`, all
  // those fragments are written; else those of messages before that one.
  std::array<uint64_t, kMaxRails> given{}, written{};
  Outgoing outgoing[kFifoDepth];

  bool has_room(uint32_t places) const { return posted - freed < places; }
  // The payloads of messages before the first that waits or is under way are free.
  uint64_t released() const {
    uint64_t free = with_payload > sent ? sent : posted;
    for (uint32_t rail = 0; rail < kMaxRails; ++rail)
      if (written[rail] != given[rail]) free = std::min(free, written[rail]);
    return free;
  }
  void give(uint32_t rail, uint64_t number) {
    if (written[rail] == given[rail]) written[rail] = number;
    given[rail] = number + 1;
  }
  // Nothing will be sent any more.
  void forget() {
    sent = posted;
    written = given;
  }
};

// What a completion of `request` says to be written.
struct Written {
  uint64_t request = 0;
  uint32_t channel = 0;
  uint64_t number = 0;
};

// First in, first out, of at most so many; no allocation after construction.
template <typename T>
class Ring {
 public:
  explicit Ring(size_t most) : slots_(most) {}
  bool empty() const { return first_ == end_; }
  T& front() { return slots_[first_ % slots_.size()]; }
  void push(T value) {
    assert(end_ - first_ < slots_.size());
    slots_[end_++ % slots_.size()] = value;
  }
  void pop() { ++first_; }
  void clear() { first_ = end_; }

 private:
  std::vector<T> slots_;
  uint64_t first_ = 0, end_ = 0;
};

}  // namespace treering::verbs
