// SPDX-License-Identifier: Apache-2.0
// Fifo: one direction of a Connection over memory that both sides map.
//
//   slot 0 | turn signature bytes kind wide region offset | 32 inline bytes |     one cache line for most messages,
//          | ... up to 256 inline bytes more                                |     up to five
//          | if not inline: whole                                           |
//   slot 1 | ...                                                            |     kFifoDepth slots, used in turn
//   ...
//   popped | number of messages popped |                                          a cache line of its own
//   acknowledged | see cma.h |
//
// A slot belongs to the receiver while its `turn` equals the number (from 1) of the message that it holds; the
// receiver gives it back by advancing `popped`. The sender looks at `popped` only when its last known value says
// that the FIFO is full, so in the common case each side touches only cache lines that the other does not.
#pragma once

#include <atomic>
#include <cstring>

#include "transport/connection.h"

namespace treering {

struct alignas(64) FifoSlot {
  std::atomic<uint32_t> turn;
  uint32_t signature;
  uint32_t bytes;
  PayloadKind kind;
  uint8_t wide;
  uint16_t reserved[3];
  uint32_t region;
  uint64_t offset;
  unsigned char inline_data[kInlineBytes];
};
static_assert(sizeof(FifoSlot) == 320);

struct Fifo {
  FifoSlot slots[kFifoDepth];
  alignas(64) std::atomic<uint32_t> popped;
  alignas(64) std::atomic<uint32_t> acknowledged;
};

inline void fill_slot(FifoSlot* slot, const Message& message) {
  slot->signature = message.signature;
  slot->bytes = message.bytes;
  slot->kind = message.kind;
  slot->wide = message.wide;
  slot->region = message.user.region;
  slot->offset = message.user.offset;
  if (message.kind != PayloadKind::kInline)
    std::memcpy(slot->inline_data, &message.whole, sizeof message.whole);
  else if (message.bytes > 0)
    std::memcpy(slot->inline_data, message.data, message.bytes);
}

inline Message read_slot(const FifoSlot& slot) {
  Message message;
  message.signature = slot.signature;
  message.bytes = slot.bytes;
  message.kind = slot.kind;
  message.wide = slot.wide != 0;
  message.user = {slot.region, slot.offset};
  message.data = slot.kind == PayloadKind::kInline ? slot.inline_data : nullptr;
  if (slot.kind != PayloadKind::kInline) std::memcpy(&message.whole, slot.inline_data, sizeof message.whole);
  return message;
}

class FifoSender {
 public:
  explicit FifoSender(Fifo* fifo = nullptr) : fifo_(fifo) {}

  void post(uint64_t posted, const Message& message) {
    FifoSlot& slot = fifo_->slots[posted % kFifoDepth];
    fill_slot(&slot, message);
    slot.turn.store(static_cast<uint32_t>(posted + 1), std::memory_order_release);
  }
  // The counter in memory has 32 bits; `posted` is at most kFifoDepth ahead of it.
  uint64_t popped(uint64_t posted) const {
    uint32_t low = fifo_->popped.load(std::memory_order_acquire);
    return posted - (static_cast<uint32_t>(posted) - low);
  }

 private:
  Fifo* fifo_;
};

class FifoReceiver {
 public:
  explicit FifoReceiver(Fifo* fifo = nullptr) : fifo_(fifo) {}

  const FifoSlot* front() const {
    const FifoSlot& slot = fifo_->slots[popped_ % kFifoDepth];
    return slot.turn.load(std::memory_order_acquire) == static_cast<uint32_t>(popped_ + 1) ? &slot : nullptr;
  }
  // The next message is often there already: its slot is asked for while the call goes on with this one. The counter,
  // a cache line that the sender reads, is written for every kTellEvery-th message, or when the sender waits for this
  // one.
  void pop(bool awaited) {
    ++popped_;
    __builtin_prefetch(&fifo_->slots[popped_ % kFifoDepth]);
    if (awaited || popped_ % kTellEvery == 0)
      fifo_->popped.store(static_cast<uint32_t>(popped_), std::memory_order_release);
  }

 private:
  Fifo* fifo_;
  uint64_t popped_ = 0;
};

}  // namespace treering
