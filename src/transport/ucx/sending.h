// SPDX-License-Identifier: Apache-2.0
// Sending: what a link knows of the messages of a channel that it sends. No I/O.
//
//   | m4 | m5 | m6 | m7 | m8 |      kFifoDepth places, used in turn
//     ^freed    ^taken    ^posted
//
// `freed`: the peer has popped so many. `taken`: UCX is done with so many, one after the other: their payloads are
// released. UCX may be done with them in another order.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "transport/connection.h"
#include "transport/ucx/wire.h"

namespace treering::ucx {

// Sends to a peer that UCX is not done with, and whether one has ended with an error.
struct UnderWay {
  uint32_t count = 0;
  int error = 0;             // ucs_status_t
  bool has_arrived = false;  // one of them
};

// What UCX sends of, until it is done. Its address stays.
struct Note {
  Header header;
  UnderWay* among = nullptr;
  bool is_done = true;

  void begin(UnderWay* all) {
    is_done = false;
    ++(among = all)->count;
  }
  void end(int error) {
    is_done = true;
    --among->count;
    among->has_arrived |= error == 0;
    if (among->error == 0) among->error = error;
  }
};

struct Outgoing {
  Note note;
  alignas(8) std::byte inline_copy[kInlineBytes];
};

class Sending {
 public:
  bool has_room() const { return posted_ - std::min(freed_, taken_) < kFifoDepth; }
  // The place of the next message, which is posted from here on; only when has_room().
  Outgoing& post() { return outgoing_[posted_++ % kFifoDepth]; }
  uint64_t posted() const { return posted_; }

  // How many UCX is done with.
  uint64_t taken() {
    while (taken_ < posted_ && outgoing_[taken_ % kFifoDepth].note.is_done) ++taken_;
    return taken_;
  }

  // The peer has popped so many (modulo 2^32). News may overtake each other.
  Status credit(uint32_t popped) {
    const auto more = static_cast<int32_t>(popped - static_cast<uint32_t>(freed_));
    if (more <= 0) return {};
    if (static_cast<uint64_t>(more) > posted_ - freed_)
      return {trSystemError, fmt::format("it has popped {} messages of {} that were sent", popped, posted_)};
    freed_ += static_cast<uint64_t>(more);
    return {};
  }
  bool all_freed() const { return freed_ == posted_; }

 private:
  uint64_t posted_ = 0, freed_ = 0, taken_ = 0;
  Outgoing outgoing_[kFifoDepth];
};

}  // namespace treering::ucx
