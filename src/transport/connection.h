// SPDX-License-Identifier: Apache-2.0
// A Connection is the two-way link to one peer on one channel: two point-to-point FIFOs, one each way, of small
// descriptors. A descriptor carries a few bytes inline or says where the payload lies; the payload itself is read in
// place by the receiver (mapped) or fetched by it (not mapped).
//
//     sender                                          receiver
//     post(message) -> | descriptor | descriptor | -> front() ... read payload ... pop()
//     released(), can_post()   <--- counter of pops -----------------------'
//
// Two things end for a posted message: its payload is released (released(): the memory that it refers to is the
// sender's again), and its descriptor is popped (which makes room, can_post()). A transport that reads payloads in
// place releases them when they are popped. One that copies them does so once they have left the sender and need not be
// sent again; what it could not send yet waits in a SendQueue, which all connections to that peer share.
//
// Invariants: messages arrive in the order of post(); a payload that is referred to stays unchanged until released()
// reaches the number of posts made when it was posted; released() may count inline messages late, by less than
// kTellEvery; at least five messages can be posted before the peer reads any; no call blocks; nothing but connect-time
// code allocates, or takes a lock that is held for longer than a lookup.
//
// Every transport passes the same conformance suite (tests/transport/conformance_test.cpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/status.h"
#include "transport/region.h"

namespace treering {

inline constexpr size_t kInlineBytes = 288;
inline constexpr size_t kFirstLineInlineBytes = 32;  // ... as far as they share the descriptor's first cache line
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

// Memory that a message may refer to.
struct UserMemory {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  const Region* region = nullptr;  // that it may lie in; id 0: in none
  bool fetch_pays = false;         // the peer's fetch() was measured to be worth it for this call

  bool lies_in_region() const {
    return region->id != 0 && data >= region->base && data + bytes <= region->base + region->bytes;
  }
};

struct Message {
  uint32_t signature = 0;  // of the operation: a receiver compares it with its own
  uint32_t bytes = 0;
  // Bytes of the transfer that it is a part of, for what users are told when both ends differ; 0: not known. Payloads
  // in the descriptor may be without it.
  uint64_t whole = 0;
  PayloadKind kind = PayloadKind::kInline;
  bool wide = false;           // elements are float32 partial results of a 16-bit type
  UserAddress user;            // kUser: where; kStaging: offset is the offset in the staging memory
  const void* data = nullptr;  // sender: kInline source. Receiver: the payload, or nullptr when only fetch() reaches it
  // Sender: the peer wants the value at `output_offset` of its output of that operation, so a transport may write it
  // there (Connection::show_output()), and make the message kDelivered. 0: it wants it nowhere.
  uint64_t output_operation = 0;
  uint64_t output_offset = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;

  virtual bool can_post() = 0;
  // Only when can_post(). Everything written before is visible to the receiver when it sees the message.
  virtual void post(const Message& message) = 0;
  uint64_t posted() const { return posted_; }
  // How many of the posted messages need their payload no longer.
  virtual uint64_t released() = 0;
  // The same as of the last time that it was asked: never too high, and free.
  uint64_t known_released() const { return released_; }
  // Whether the payloads of the first `target` posts are released.
  bool has_released(uint64_t target) { return released_ >= target || released() >= target; }

  // The message at the head of the incoming FIFO, or nullptr. Valid until pop().
  virtual const Message* front() = 0;
  virtual void pop() = 0;
  // Copies a part of front()'s payload; for messages whose `data` is nullptr.
  virtual Status fetch(const Message& message, size_t offset, void* destination, size_t bytes) = 0;

  // How a message may refer to this memory of the sender's user; nothing: it must go through a slot.
  virtual std::optional<UserAddress> reference(const UserMemory& memory) const = 0;
  // Where the peer takes a final value, as memory of this process; nullptr: nowhere. In the output of the peer's
  // operation, `offset` bytes from its start:
  virtual std::byte* output_place(uint64_t operation, uint64_t offset, size_t bytes) { return nullptr; }
  // Tells the peer where it may write final values of this rank's operation, where the transport can. Neither
  // rank waits for that: what is sent before it is heard of comes as any other message.
  virtual void show_output(uint64_t operation, const UserMemory& output) { (void)operation, (void)output; }
  // ... or where it showed this operand, a message of the operation at hand:
  virtual std::byte* operand_place(const Message& operand) { return nullptr; }
  // True when slots of staging memory outlive the sender: a peer reads them also when the sender's process has ended.
  virtual bool slots_outlive_sender() const { return false; }

  // The first failure of the link itself; sticky.
  virtual Status health() const { return {}; }
  virtual const char* transport_name() const = 0;

 protected:
  uint64_t posted_ = 0;
  uint64_t released_ = 0;
};

// Messages that were posted and wait in this process. Whatever a rank waits for, it calls flush() meanwhile.
class SendQueue {
 public:
  virtual ~SendQueue() = default;
  // Sends what can be sent; true when nothing waits.
  virtual bool flush() = 0;
  // The same for those who ask now and then, some milliseconds apart. flush() is asked thousands of times: what is costly
  // it does at few of them.
  virtual void serve_idle() { (void)flush(); }
  // Why what waits cannot be sent any more, or ok.
  virtual Status health() const = 0;
  // Since when nothing has gone to the peer or come from it because there is no connection, though one is wanted; a link
  // that failed for that goes on to tell it. Nothing: there is one, or it is not known.
  virtual std::optional<std::chrono::steady_clock::time_point> away_since() const { return {}; }
};

// The connections to one peer.
struct PeerConnections {
  std::vector<std::unique_ptr<Connection>> channels;
  std::shared_ptr<SendQueue> queue;  // nullptr: post() leaves nothing behind
};

}  // namespace treering
