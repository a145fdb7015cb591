// SPDX-License-Identifier: Apache-2.0
// TcpOutbox: the messages of a link that its peer may still need. No I/O: streams ask it what to send.
//
//   posted:  | m4 | m5 | m6 | m7 | m8 |      a place for each message of a channel, kFifoDepth in all, used in turn
//              ^freed    ^released ^written
//
//   written    the kernel has taken the whole of it, once
//   released   its payload is not looked at any more: the peer has popped it, or it was copied here
//   freed      the peer has popped it, and nothing refers to its place
//
// What the kernel has taken may be lost with its stream. Then all messages of which the stream had a part, and which
// the peer has not popped, are sent again, whole, under the number of a new attempt: the receiver knows what it has.
//
// Invariant: a payload of the caller's is looked at until released() counts the message, never after.
#pragma once

#include <chrono>
#include <vector>

#include "core/clock.h"
#include "transport/tcp/buffers.h"
#include "transport/tcp/wire.h"

namespace treering {

struct TcpOutgoing {
  TcpFrame frame;
  const std::byte* payload = nullptr;
  uint32_t bytes = 0;      // of the payload
  uint32_t given = 0;      // to streams
  uint64_t begin = 0;      // ... after so many bytes of others
  uint64_t streams = 0;    // that have had a part, by bits
  uint32_t under_way = 0;  // fragments that streams have at hand
  uint32_t held = 0;       // sends for which the kernel may still read the payload
  bool all_given = false;
  bool was_written = false;  // the kernel has had the whole of it, though its stream may have broken since
  bool small = false;        // for the shared stream
  bool kept = false;         // the payload is no memory of the caller's
  bool unnoticed = false;  // a stream broke whose kernel may still read the payload, and will not tell when it is done
  std::byte* copy = nullptr;
  std::chrono::steady_clock::time_point asked_for{};  // since when the caller wants its memory back
  std::byte inline_copy[kInlineBytes];
};

class TcpOutbox {
 public:
  // Up to so many bytes are copied as soon as the caller wants its memory back; of more the acknowledgement is waited
  // for, for about as long as four copies take.
  static constexpr uint32_t kCopiedAtOnce = 16 << 10;
  static constexpr auto kGraceOfKiB = std::chrono::nanoseconds(512);

  explicit TcpOutbox(uint32_t channels);
  ~TcpOutbox();

  bool has_room(uint32_t channel) const { return channels_[channel].posted - channels_[channel].freed < kFifoDepth; }
  // Returns the message, in its place.
  const TcpOutgoing& post(uint32_t channel, const Message& message, const void* payload);

  // Messages of which streams have not got the whole: small ones, large ones.
  bool empty(bool small) const { return queue(small).empty(); }
  // The next of them, where there is one.
  TcpOutgoing* first(bool small);
  // A stream gets the next `length` bytes of the first message.
  void give(TcpOutgoing* message, uint32_t length, uint32_t stream);
  // The kernel has taken a fragment; or the stream has broken that had it.
  void take(TcpOutgoing* message);
  // The kernel may read a fragment of the payload in place; it is done with a message in `place`; its stream is gone.
  static uint32_t place_of(const TcpOutgoing& message) {
    return message.frame.channel * kFifoDepth + message.frame.message % kFifoDepth;
  }
  void let_go(uint32_t place);
  void lose_sight(uint32_t place);

  // The peer has popped so many; false: more than were sent.
  bool acknowledge(uint32_t channel, uint32_t popped);
  // The message, if its place is still its own.
  const TcpOutgoing* find(uint32_t channel, uint32_t number) const;
  uint32_t released(uint32_t channel) const { return channels_[channel].released; }
  // The caller wants its memory back: copies what has waited long enough for the peer.
  void release(uint32_t channel, Clock::time_point now);

  // The stream has broken: what it had a part of is to be sent again.
  void lost(uint32_t stream);
  // The peer has left: what was written is not needed any more.
  void forget_written();

  // Messages that wait for the kernel to take them for the first time.
  bool has_unwritten() const;
  bool has_unacknowledged() const { return unacknowledged_ > 0; }
  size_t memory() const { return buffers_.allocated(); }

 private:
  struct Queue {  // of channels, a ring
    std::vector<uint8_t> channels;
    uint32_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
    void push(uint8_t channel) { channels[end++ % channels.size()] = channel; }
  };
  struct Channel {
    uint32_t posted = 0, written = 0, released = 0, acknowledged = 0, freed = 0;
    TcpOutgoing messages[kFifoDepth];
    TcpOutgoing& at(uint32_t number) { return messages[number % kFifoDepth]; }
  };
  const Queue& queue(bool small) const { return small ? small_ : large_; }
  Queue& queue(bool small) { return small ? small_ : large_; }
  void advance(Channel* channel);
  void keep(TcpOutgoing* message);
  void rebuild_queues();

  std::vector<Channel> channels_;
  Queue small_, large_;
  uint32_t unacknowledged_ = 0;
  bool repeated_ = false;  // something was sent again
  TcpBuffers buffers_;
};

}  // namespace treering
