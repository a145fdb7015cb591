// SPDX-License-Identifier: Apache-2.0
// Incoming: the messages of one channel that have arrived from a peer. No I/O.
//
//   header of message 5 (3 fragments) ---- fragment 2 ---- fragment 1 ----> front() is message 5
//
// Fragments may come before their header, and headers before the fragments of messages before them.
//
// Invariant: a header is checked when its immediate is told, and copied: what the peer writes into it later changes
// nothing that was checked.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/verbs/wire.h"

namespace treering::verbs {

class Incoming {
 public:
  // `number`: of the immediate. The header is copied to `*header`. `rails`: of the link.
  Status arrive(const std::byte* block, const BlockLayout& layout, uint32_t channel, uint32_t number, uint32_t rails,
                Header* header) {
    if (full_count(arrived_, number) != arrived_ || arrived_ - popped_ >= layout.places)
      return {trSystemError, fmt::format("it sent message {} of channel {}, of which {} have come and {} are read",
                                         number, channel, arrived_, popped_)};
    std::memcpy(static_cast<void*>(header), block + layout.header(channel, arrived_), kHeaderBytes);
    const auto kind = static_cast<PayloadKind>(header->kind);
    const bool is_inline = kind == PayloadKind::kInline;
    const bool carries = is_inline || header->fragments != 0;
    if (header->kind > static_cast<uint8_t>(PayloadKind::kDelivered) || header->wide > 1 ||
        (carries && header->bytes > (is_inline ? kInlineBytes : layout.place_bytes)))
      return {trSystemError, fmt::format("it sent a message of kind {} with {} bytes; at most {} are possible",
                                         header->kind, header->bytes, is_inline ? kInlineBytes : layout.place_bytes)};
    uint8_t& missing = missing_[arrived_ % kFifoDepth];
    const uint8_t early = std::exchange(early_[arrived_ % kFifoDepth], uint8_t{0});
    missing = header->fragments > 1 ? static_cast<uint8_t>(((1u << header->fragments) - 1) & ~1u) : uint8_t{0};
    if (header->fragments > rails || (is_inline && header->fragments != 0) || (early & ~missing) != 0)
      return {trSystemError, fmt::format("it sent a message of {} fragments over {} rails", header->fragments, rails)};
    missing &= static_cast<uint8_t>(~early);
    Message& message = messages_[arrived_ % kFifoDepth];
    message = {};
    message.signature = header->signature;
    message.bytes = header->bytes;
    message.whole = header->whole;
    message.kind = kind;
    message.wide = header->wide != 0;
    if (carries && kind != PayloadKind::kDelivered) message.data = block + layout.data(channel, arrived_);
    ++arrived_;
    return {};
  }

  // `count`: of the immediate.
  Status arrive_fragment(const BlockLayout& layout, uint32_t count, uint32_t rails) {
    const uint32_t fragment = count >> kFragmentNumberBits;
    const uint64_t ahead = (count - static_cast<uint32_t>(popped_)) & kFragmentNumberMask;
    const uint64_t slot = (popped_ + ahead) % kFifoDepth;
    uint8_t& fragments = popped_ + ahead < arrived_ ? missing_[slot] : early_[slot];
    const auto bit = static_cast<uint8_t>(1u << std::min(fragment, kMaxRails));
    const bool is_missing = popped_ + ahead < arrived_ ? (fragments & bit) != 0 : (fragments & bit) == 0;
    if (fragment == 0 || fragment >= rails || ahead >= layout.places || !is_missing)
      return {trSystemError, fmt::format("it sent fragment {} of message {} over {} rails; {} messages are read",
                                         fragment, count & kFragmentNumberMask, rails, popped_)};
    fragments ^= bit;
    return {};
  }

  // The next message, once it has come as a whole.
  const Message* front() const {
    const uint64_t slot = popped_ % kFifoDepth;
    return arrived_ > popped_ && missing_[slot] == 0 ? &messages_[slot] : nullptr;
  }
  void pop() { ++popped_; }
  uint64_t popped() const { return popped_; }

  // The peer knows of so many pops.
  void told() { told_ = popped_; }
  // It must be told, or it may run out of places.
  bool owes_credit() const { return popped_ - told_ >= kTellEvery; }

 private:
  uint64_t arrived_ = 0, popped_ = 0, told_ = 0;
  Message messages_[kFifoDepth];
  uint8_t missing_[kFifoDepth] = {},
          early_[kFifoDepth] = {};  // bits of fragments: of messages whose header has come, or not
};

}  // namespace treering::verbs
