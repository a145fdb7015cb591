// The sending half of a TCP link: a queue of messages, cut into pieces, and the streams that take them.
//
//   post -> | m3 of channel 1 | ...                      small ones and credits, on the shared stream
//        -> | m7 of channel 0 | m4 of channel 1 | ...     large ones, in the order of the posts
//              '-> piece 0 -> stream 1    '-> ...         a stream has one piece at hand; it gets the next when the kernel
//              '-> piece 1 -> stream 2                    has taken that one
//
// A message is written when the kernel has taken all its pieces, and handed over when it needs their memory no longer: at
// once, but where it was asked not to copy a large piece (tcp_zero_copy.h). Its payload is not looked at afterwards.
#pragma once

#include <vector>

#include "transport/tcp_congestion.h"
#include "transport/tcp_division.h"
#include "transport/tcp_wait.h"
#include "transport/tcp_wire.h"
#include "transport/tcp_zero_copy.h"

namespace treering {

class TcpSender {
 public:
  TcpSender(uint32_t channels, uint32_t streams, uint32_t piece_bytes, TcpZeroCopy zero_copy, TcpCongestion congestion,
            TcpWaitSet* waits);
  ~TcpSender();

  // A second stream 0 takes the place of the first, which is closed when its frame at hand is through.
  void add_stream(uint32_t index, int fd);
  // Something waits for the shared stream.
  bool wants_shared() const { return !small_.empty() || owed_ > 0; }
  // Own streams that have had something to do: all from the first message of several pieces on.
  uint32_t wanted_streams() const { return wanted_streams_; }

  bool has_room(uint32_t channel) const {
    const Channel& to = channels_[channel];
    // The peer may have popped what the kernel has not told about yet.
    return to.posted - to.acknowledged < kFifoDepth && to.posted - to.handed_over < kFifoDepth;
  }
  // `payload` stays unchanged until the message is handed over, unless it is inline: that is copied.
  void post(uint32_t channel, const Message& message, const void* payload);
  uint32_t handed_over(uint32_t channel) const { return channels_[channel].handed_over; }
  // The peer has popped as many messages as the frame tells, and may tell how one of them came.
  Status acknowledge(const TcpFrame& frame);

  // This rank has popped so many messages of the peer; `now`: the peer is told by a frame of its own.
  void set_popped(uint32_t channel, uint32_t popped, bool now, const TcpLateness& lateness);
  uint32_t told(uint32_t channel) const { return channels_[channel].told; }

  // The peer cannot be told any more, and need not be.
  void forget_credits();
  // Why credits could not be sent.
  const Status& credit_failure() const { return credit_failure_; }

  // Something waits for the kernel to take it, or to be done with it: messages or credits.
  bool pending() const { return pending_; }
  // The kernel reads from the messages' own memory, as far as it is known: what it sends is not out of the way at once.
  bool sends_in_place() const { return unnoticed_ > 0 || (zero_copy_.on() && zero_copy_.sends() > 0); }
  uint64_t zero_copy_sends() const { return zero_copy_.sends(); }
  // Messages that wait for the kernel to take them.
  bool has_messages() const;
  // Gives the kernel what it takes.
  Status flush();
  // Looks whether the peer is still there.
  Status probe();

  // Nothing more will be sent on the shared stream.
  void finish();
  // The peer's kernel has all that was sent on it: closing it loses nothing. The other streams' sends that are under way
  // go on without the process, from pages that the kernel holds.
  bool delivered() const;
  // A descriptor of the shared stream, the caller's; -1: there is none.
  int duplicate_shared() const;

 private:
  struct Outgoing {
    TcpFrame frame;
    const std::byte* payload = nullptr;
    uint32_t bytes = 0;      // of the payload
    uint32_t given = 0;      // to streams
    uint64_t begin = 0;      // ... after so many bytes of others
    uint32_t under_way = 0;  // pieces that streams have at hand
    uint32_t held = 0;       // sends for which the kernel may still read the payload
    bool all_given = false;
    bool small = false;  // for the shared stream
    std::byte copy[kInlineBytes];
  };
  struct Queue {  // of channels, a ring
    std::vector<uint8_t> channels;
    uint32_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
    void push(uint8_t channel) { channels[end++ % channels.size()] = channel; }
  };
  struct Channel {
    uint32_t posted = 0, written = 0, handed_over = 0, acknowledged = 0;
    uint32_t popped = 0, told = 0;
    bool owes_credit = false;
    TcpLateness lateness;  // to be told
    Outgoing messages[kFifoDepth];
  };
  struct Stream {
    uint32_t index;
    int fd;
    bool busy = false, closed = false;
    bool replaced = false;   // it gets no more frames
    bool zero_copy = false;  // the kernel can
    bool refused = false;    // ... but not of the frame at hand
    uint32_t pieces = 0;     // given to it, until the length of its path counts
    bool shared() const { return index == 0; }
    Outgoing* message = nullptr;  // nullptr: a credit
    uint32_t channel = 0;
    const std::byte* payload = nullptr;
    size_t head_bytes = 0, bytes = 0, done = 0;  // of the head, of the payload after it, of both what is written
    std::byte head[sizeof(TcpFrame) + kInlineBytes];
    ZeroCopySends sends;  // of places: channel * kFifoDepth + message % kFifoDepth
  };

  Stream* find(uint32_t index);  // one that is open
  Status flush_small();
  Status flush_large();
  bool load(Stream* stream);
  Outgoing* first_of(const Queue& queue);
  void load_piece(Stream* stream, Queue* queue);
  void load_credit(Stream* stream, uint32_t channel);
  bool goes_uncopied(const Stream& stream) const;
  // Bytes of the frame at hand that the kernel took, or -1.
  ssize_t give(Stream* stream, bool uncopied);
  // Whether the frame at hand was taken whole.
  Status write(Stream* stream, bool* whole);
  void finish_frame(Stream* stream);
  void hand_over(Channel* to);
  Status take_notices();
  void end_stream(Stream* stream);
  void look_at_path(Stream* stream) const;
  Status write_failed(Stream* stream, int error);
  void update_pending();
  Status check_streams() const;

  TcpWaitSet* waits_;  // or nullptr
  TcpCongestion congestion_;
  uint32_t most_streams_, piece_bytes_, unsent_bytes_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<Stream>> streams_;
  Queue small_, large_;
  TcpDivision division_;
  uint32_t wanted_streams_ = 0;
  uint32_t owed_ = 0;  // channels that owe a credit
  bool pending_ = false, gives_credit_ = true;
  ZeroCopyUse zero_copy_;
  uint32_t unnoticed_ = 0;  // sends of all streams for which the kernel may still read
  Status credit_failure_;
};

}  // namespace treering
