// SPDX-License-Identifier: Apache-2.0
// The sending half of a TCP link: the streams that take fragments of its messages (outbox.h), and credits.
//
//   outbox:  | m3 of channel 1 | ...                      small ones and credits, on the shared stream
//            | m7 of channel 0 | m4 of channel 1 | ...     large ones, in the order of the posts
//              '-> fragment 0 -> stream 1   '-> ...      a stream has one fragment at hand; it gets the next when the
//              '-> fragment 1 -> stream 2                kernel has taken that one
//
// A stream that breaks is closed and told about by losses(); what it had a part of goes to the others, or waits for
// one.
#pragma once

#include <string>
#include <vector>

#include "transport/tcp/congestion.h"
#include "transport/tcp/stripes.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/resume.h"
#include "transport/wait_set.h"
#include "transport/tcp/wire.h"
#include "transport/tcp/zero_copy.h"

namespace treering {

class TcpSender {
 public:
  TcpSender(uint32_t channels, uint32_t streams, uint32_t fragment_bytes, TcpZeroCopy zero_copy,
            TcpCongestion congestion, const TcpTimeouts& timeouts, WaitSet* waits);
  ~TcpSender();

  // A second stream 0 takes the place of the first, which is closed when its frame at hand is through; what the peer
  // has not acknowledged of the first is sent again.
  void add_stream(uint32_t index, uint64_t key, int fd);
  bool has_stream(uint32_t index) const { return (open_ >> index & 1) != 0; }
  uint64_t shared_key() const { return shared_key_; }
  // The stream broke, where it is still in use.
  void lose_stream(uint32_t index, uint64_t key, const std::string& why);
  // Streams that broke since the last call.
  std::vector<TcpLoss> take_losses() { return std::exchange(losses_, {}); }
  bool has_losses() const { return !losses_.empty(); }
  // Something waits for the shared stream, or for a stream of large messages.
  bool wants_shared() const { return !outbox_.empty(true) || owed_ > 0; }
  bool wants_large() const { return !outbox_.empty(false); }
  // Own streams that have had something to do: all from the first message of several fragments on.
  uint32_t wanted_streams() const { return wanted_streams_; }

  bool has_room(uint32_t channel) const { return outbox_.has_room(channel); }
  // `payload` stays unchanged until the message is released, unless it is inline: that is copied.
  void post(uint32_t channel, const Message& message, const void* payload);
  uint32_t released(uint32_t channel) const { return outbox_.released(channel); }
  // The caller wants its memory back.
  void release(uint32_t channel, TcpClock::time_point now) { outbox_.release(channel, now); }
  // The peer has popped as many messages as the frame tells, and may tell how one of them came.
  Status acknowledge(const TcpFrame& frame);

  // This rank has popped so many messages of the peer; `now`: the peer is told by a frame of its own.
  void set_popped(uint32_t channel, uint32_t popped, bool now, const ArrivalSkew& skew);
  // What this rank has popped is told again, as the news of it may be lost.
  void owe_all_credits();
  uint32_t told(uint32_t channel) const { return credits_[channel].told; }
  // A stream of the peer's broke here; it is told, as soon as there is a shared stream, until another takes its place.
  void tell_lost(uint32_t index, uint32_t attempt);
  void replaced(uint32_t index, uint32_t attempt);

  // The peer has left: it needs no credits, and has what it wanted of what was written.
  void forget_peer();

  // Something waits for the kernel to take it, or to be done with it: messages or credits.
  bool pending() const { return pending_; }
  bool has_unacknowledged() const { return outbox_.has_unacknowledged(); }
  // The kernel reads from the messages' own memory, as far as it is known: what it sends is not out of the way at once.
  bool sends_in_place() const { return unnoticed_ > 0 || (zero_copy_.on() && zero_copy_.sends() > 0); }
  uint64_t zero_copy_sends() const { return zero_copy_.sends(); }
  // Messages that wait for the kernel to take them for the first time.
  bool has_messages() const { return outbox_.has_unwritten(); }
  // Gives the kernel what it takes.
  Status flush();
  // Looks which streams have broken, or stand still. Those are lost, or kept and reported (has_stalled).
  enum class Stalled { kLose, kKeep };
  Status look(TcpClock::time_point now, Stalled stalled);
  bool has_stalled() const { return has_stalled_; }

  // Tells the peer that this rank leaves, and needs nothing of it. From here on the kernel copies all that it is given.
  void say_goodbye();
  // Nothing waits to be sent, and the peer's kernel has all that was, but for the goodbye.
  bool has_arrived() const;
  // Since the peer's kernel has answered on all streams on which something is under way, and does not only wait for room
  // there. The longest time: the kernel has not taken all, or reads from memory of this process.
  TcpClock::duration since_answer() const;
  // Nothing more will be sent on the shared stream.
  void finish();
  // The peer's kernel has all that was sent on it: closing it loses nothing. What is under way on other streams goes on
  // without this object, but for sends from memory that it may free: these are thrown away.
  bool delivered() const;
  // A descriptor of the shared stream, the caller's; -1: there is none.
  int duplicate_shared() const;

 private:
  struct Credit {
    uint32_t popped = 0, told = 0;
    bool owed = false;
    ArrivalSkew skew;  // to be told
  };
  struct Stream {
    uint32_t index;
    uint64_t key;
    int fd;
    bool busy = false, closed = false;
    bool replaced = false;   // it gets no more frames
    bool zero_copy = false;  // the kernel can
    bool refused = false;    // ... but not of the frame at hand
    bool said_goodbye = false;
    uint32_t fragments = 0;  // given to it, until the length of its path counts
    bool shared() const { return index == 0; }
    TcpOutgoing* message = nullptr;  // nullptr: a credit
    const std::byte* payload = nullptr;
    size_t head_bytes = 0, bytes = 0, done = 0;  // of the head, of the payload after it, of both what is written
    uint64_t taken = 0;                          // by the kernel, in all
    TcpStall stall;
    std::byte head[sizeof(TcpFrame) + kInlineBytes];
    ZeroCopySends sends;  // of TcpOutbox's places
  };
  struct Broken {  // a stream of the peer's
    uint32_t index, attempt;
    bool told;
  };

  Stream* find(uint32_t index);  // one that is open
  Status flush_small();
  Status flush_large();
  bool load(Stream* stream);
  void load_fragment(Stream* stream);
  bool load_credit(Stream* stream);
  bool load_broken(Stream* stream);
  void load_frame(Stream* stream, const TcpFrame& frame);
  bool goes_uncopied(const Stream& stream) const;
  // Bytes of the frame at hand that the kernel took, or -1.
  ssize_t give(Stream* stream, bool uncopied);
  // Whether the frame at hand was taken whole.
  Status write(Stream* stream, bool* whole);
  void finish_frame(Stream* stream);
  Status take_notices();
  Status take_notices_of(Stream* stream);
  void end_stream(Stream* stream);
  void lose(Stream* stream, const std::string& why, TcpClock::time_point since = {});
  bool stands_still(Stream* stream, TcpClock::time_point now) const;
  void remove_closed();
  void look_at_path(Stream* stream) const;
  void update_pending();

  WaitSet* waits_;  // or nullptr
  TcpCongestion congestion_;
  TcpTimeouts timeouts_;
  uint32_t most_streams_, fragment_bytes_, unsent_bytes_;
  std::vector<Credit> credits_;  // by channel
  std::vector<std::unique_ptr<Stream>> streams_;
  uint64_t open_ = 0;  // bits: streams that get frames
  uint64_t shared_key_ = 0;
  bool any_closed_ = false, has_stalled_ = false, leaves_ = false;
  std::vector<TcpLoss> losses_;
  std::vector<Broken> broken_;
  TcpOutbox outbox_;
  StripeScheduler scheduler_;
  uint32_t wanted_streams_ = 0;
  uint32_t owed_ = 0;  // channels that owe a credit
  bool pending_ = false, gives_credit_ = true;
  ZeroCopyUse zero_copy_;
  uint32_t unnoticed_ = 0;  // sends of all streams for which the kernel may still read
};

}  // namespace treering
