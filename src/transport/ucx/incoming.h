// SPDX-License-Identifier: Apache-2.0
// Incoming: the messages of one channel that have come from a peer, put into their order. No I/O.
//
//   | m4 | m5 | m6 | m7 | m8 |      kFifoDepth places, used in turn
//     ^popped: next to be read     m6 may come before m5, and its payload after its header
//
// Invariant: a message is read once all before it were, and its payload is there.
#pragma once

#include <fmt/format.h>

#include "core/status.h"
#include "transport/connection.h"

namespace treering::ucx {

class Incoming {
 public:
  // Message `number` (modulo 2^32) has come, and its payload may follow: `*full` is its number in full.
  Status arrive(uint32_t number, const Message& message, uint64_t* full) {
    const uint32_t ahead = number - static_cast<uint32_t>(popped_);
    *full = popped_ + ahead;
    if (ahead >= kFifoDepth || at(*full).state != State::kAwaited)
      return {trSystemError, fmt::format("it sent message {} of a channel of which {} are read: {}", number, popped_,
                                         ahead < kFifoDepth ? "it has come before" : "that is too far ahead")};
    at(*full) = {message, State::kLanding};
    return {};
  }
  // Its payload is there.
  void complete(uint64_t full, const void* data) {
    at(full).message.data = data;
    at(full).state = State::kReady;
  }

  const Message* front() const {
    const Place& place = places_[popped_ % kFifoDepth];
    return place.state == State::kReady ? &place.message : nullptr;
  }
  void pop() { at(popped_++).state = State::kAwaited; }
  uint64_t popped() const { return popped_; }

  // The peer knows of so many pops.
  void told() { told_ = popped_; }
  // It must be told, or it may run out of places.
  bool owes_credit() const { return popped_ - told_ >= kTellEvery; }

 private:
  enum class State : uint8_t { kAwaited, kLanding, kReady };
  struct Place {
    Message message;
    State state = State::kAwaited;
  };
  Place& at(uint64_t full) { return places_[full % kFifoDepth]; }

  uint64_t popped_ = 0, told_ = 0;
  Place places_[kFifoDepth];
};

}  // namespace treering::ucx
