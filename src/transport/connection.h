// SPDX-License-Identifier: Apache-2.0
// A Connection is the two-way link to one peer on one channel: two point-to-point FIFOs, one each way, of small
// descriptors. A descriptor carries a few bytes inline or says where the payload lies; the payload itself is read in
// place by the receiver (mapped) or fetched by it (not mapped).
//
//     sender                                          receiver
//     post(message) -> | descriptor | descriptor | -> front() ... read payload ... pop()
//     consumed()    <------------- counter of pops ------------------------'
//
// A transport that copies payloads (buffers()) sends them from the sender's memory and counts them as consumed once they
// have left it and need not be sent again; what it could not send yet it sends in later calls of any connection to that peer.
//
// Invariants: messages arrive in the order of post(); a payload that is referred to stays unchanged until consumed()
// reaches the number of posts made when it was posted; consumed() may count inline messages late, by less than
// kTellEvery; at least five messages can be posted before the peer reads any; no call blocks; nothing but connect-time
// code allocates or locks.
//
// Every transport passes the same conformance suite (tests/transport/conformance_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"

namespace treering {

inline constexpr size_t kInlineBytes = 288;
inline constexpr size_t kOneLineBytes = 32;  // ... as far as they share the descriptor's first cache line
inline constexpr uint32_t kFifoDepth = 8;
// Pops of inline messages are told to the sender in groups of this many: it can post kFifoDepth - kTellEvery + 1 ahead.
inline constexpr uint32_t kTellEvery = 4;

enum class PayloadKind : uint8_t {
  kInline,     // in the descriptor
  kStaging,    // in the sender's staging memory
  kUser,       // in a buffer of the sender's user: a registered region, or any address where the transport reaches it
  kDelivered,  // already stored where the receiver's user wants it (a step flagged kFinal)
};

// A buffer of a user, as other ranks refer to it. Region 0 means "plain memory of the owner's address space".
struct UserAddress {
  uint32_t region = 0;
  uint64_t offset = 0;  // in the region; the address itself for region 0
};

struct Message {
  uint32_t signature = 0;  // of the operation: a receiver compares it with its own
  uint32_t bytes = 0;
  // Bytes of the transfer that it is a part of, for what users are told when both ends differ; 0: not known. Payloads in
  // the descriptor may be without it.
  uint64_t whole = 0;
  PayloadKind kind = PayloadKind::kInline;
  bool wide = false;           // elements are float32 partial results of a 16-bit type
  uint32_t due_us = 0;         // when a paced link (paced.h) has carried it; 0: no such link
  UserAddress user;            // kUser: where; kStaging: offset is the offset in the staging memory
  const void* data = nullptr;  // sender: kInline source. Receiver: the payload, or nullptr when only fetch() reaches it
};

class Connection {
 public:
  virtual ~Connection() = default;

  virtual bool can_post() = 0;
  // Only when can_post(). Everything written before is visible to the receiver when it sees the message.
  virtual void post(const Message& message) = 0;
  uint64_t posted() const { return posted_; }
  // How many of the posted messages need their payload no longer: the receiver has popped them, or they were copied.
  virtual uint64_t consumed() = 0;
  // The same as of the last time that it was asked: never too high, and free.
  uint64_t known_consumed() const { return consumed_; }
  // Whether the first `target` posts are consumed.
  bool has_consumed(uint64_t target) { return consumed_ >= target || consumed() >= target; }

  // The message at the head of the incoming FIFO, or nullptr. Valid until pop().
  virtual const Message* front() = 0;
  virtual void pop() = 0;
  // Copies a part of front()'s payload; for messages whose `data` is nullptr.
  virtual Status fetch(const Message& message, size_t offset, void* destination, size_t bytes) = 0;

  // True when messages may refer to the sender's plain memory (region 0) by its address.
  virtual bool reaches_plain_memory() const = 0;
  // True when posted messages may wait in this process: flushed() must be called until it is true. One of the connections
  // that share what waits says so.
  virtual bool buffers() const { return false; }
  // Sends what can be sent; true when nothing waits.
  virtual bool flushed() { return true; }
  // True when the peer cannot read that memory in place, but fetch() it.
  virtual bool fetches_plain_memory() const { return false; }
  // True when registered regions of either side can be mapped by the other.
  virtual bool maps_regions() const = 0;
  // The peer's memory in this address space, or nullptr.
  virtual void* map_peer(UserAddress address, size_t bytes) = 0;

  // The first failure of the link itself; sticky.
  virtual Status health() const { return {}; }
  virtual const char* transport_name() const = 0;

 protected:
  uint64_t posted_ = 0;
  uint64_t consumed_ = 0;
};

}  // namespace treering
