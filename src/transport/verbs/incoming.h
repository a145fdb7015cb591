// SPDX-License-Identifier: Apache-2.0
// Incoming: the messages of one channel that have arrived from a peer. No I/O.
//
// Invariant: a line is checked when its immediate is told, and copied: what the peer writes into it later changes
// nothing that was checked.
#pragma once

#include <fmt/format.h>

#include <cstring>

#include "transport/verbs/wire.h"

namespace treering::verbs {

class Incoming {
 public:
  // `number`: of the immediate. The line's header is copied to `*line`.
  Status arrive(const std::byte* block, const BlockLayout& layout, uint32_t channel, uint32_t number, Line* line) {
    if (full_count(arrived_, number) != arrived_ || arrived_ - popped_ >= layout.places)
      return {trSystemError, fmt::format("it sent message {} of channel {}, of which {} have come and {} are read",
                                         number, channel, arrived_, popped_)};
    const std::byte* at = block + layout.line(channel, arrived_);
    std::memcpy(static_cast<void*>(line), at, kLineHeader);
    const auto kind = static_cast<PayloadKind>(line->kind);
    const bool is_inline = kind == PayloadKind::kInline;
    const bool carries = is_inline || line->has_payload != 0;
    if (line->kind > static_cast<uint8_t>(PayloadKind::kDelivered) || line->wide > 1 ||
        (carries && line->bytes > (is_inline ? kInlineBytes : layout.place_bytes)))
      return {trSystemError, fmt::format("it sent a message of kind {} with {} bytes; at most {} are possible",
                                         line->kind, line->bytes, is_inline ? kInlineBytes : layout.place_bytes)};
    Message& message = messages_[arrived_ % kFifoDepth];
    message = {};
    message.signature = line->signature;
    message.bytes = line->bytes;
    message.whole = line->whole;
    message.kind = kind;
    message.wide = line->wide != 0;
    if (carries) message.data = is_inline ? at + kLineHeader : block + layout.place(channel, arrived_);
    ++arrived_;
    return {};
  }

  const Message* front() const { return arrived_ > popped_ ? &messages_[popped_ % kFifoDepth] : nullptr; }
  void pop() { ++popped_; }
  uint64_t popped() const { return popped_; }

  // The peer knows of so many pops.
  void told() { told_ = popped_; }
  // It must be told, or it may run out of places.
  bool owes_credit() const { return popped_ - told_ >= kTellEvery; }

 private:
  uint64_t arrived_ = 0, popped_ = 0, told_ = 0;
  Message messages_[kFifoDepth];
};

}  // namespace treering::verbs
