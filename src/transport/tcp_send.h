// The sending half of a TCP link: a queue of messages, cut into pieces, and the streams that take them.
//
//   post -> | m7 of channel 0 | m3 of channel 1 | ...     in the order of the posts
//              '-> piece 0 -> stream 0    '-> ...         a stream has one piece at hand; it gets the next when the kernel
//              '-> piece 1 -> stream 1                    has taken that one
//
// A message is handed over when the kernel has taken all its pieces; its payload is not looked at afterwards. Credits for
// the peer travel before the next piece of the first stream.
#pragma once

#include <vector>

#include "transport/tcp_wait.h"
#include "transport/tcp_wire.h"

namespace treering {

class TcpSender {
 public:
  TcpSender(uint32_t channels, uint32_t streams, uint32_t piece_bytes, TcpWaitSet* waits);
  ~TcpSender();

  void add_stream(uint32_t index, int fd);
  // A message of several pieces has been posted: more than one stream has something to do.
  bool wants_all() const { return wants_all_; }

  bool has_room(uint32_t channel) const {
    const Channel& to = channels_[channel];
    return to.posted - to.acknowledged < kFifoDepth;
  }
  // `payload` stays unchanged until the message is handed over, unless it is inline: that is copied.
  void post(uint32_t channel, const Message& message, const void* payload);
  uint32_t handed_over(uint32_t channel) const { return channels_[channel].handed_over; }
  // The peer has popped that many messages; false when they were never posted.
  bool acknowledge(uint32_t channel, uint32_t popped);

  // This rank has popped so many messages of the peer; `now`: the peer is told by a frame of its own.
  void set_popped(uint32_t channel, uint32_t popped, bool now);
  uint32_t told(uint32_t channel) const { return channels_[channel].told; }

  // The peer cannot be told any more.
  void forget_credits();

  // Something waits for the kernel to take it: messages or credits.
  bool pending() const { return pending_; }
  bool has_messages() const;
  // Gives the kernel what it takes.
  Status flush();
  // Looks whether the peer is still there.
  Status probe();

 private:
  struct Outgoing {
    TcpFrame frame;
    const std::byte* payload = nullptr;
    uint32_t bytes = 0;      // of the payload
    uint32_t given = 0;      // to streams
    uint32_t under_way = 0;  // pieces that streams have at hand
    bool all_given = false;
    std::byte small[kInlineBytes];
  };
  struct Channel {
    uint32_t posted = 0, handed_over = 0, acknowledged = 0;
    uint32_t popped = 0, told = 0;
    bool owes_credit = false;
    Outgoing messages[kFifoDepth];
  };
  struct Stream {
    uint32_t index;
    int fd;
    bool busy = false, closed = false;
    Outgoing* message = nullptr;  // nullptr: a credit
    uint32_t channel = 0;
    const std::byte* payload = nullptr;
    size_t head_bytes = 0, bytes = 0, done = 0;  // of the head, of the payload after it, of both what is written
    std::byte head[sizeof(TcpFrame) + kInlineBytes];
  };

  bool load(Stream* stream);
  void load_piece(Stream* stream);
  void load_credit(Stream* stream, uint32_t channel);
  // Whether the frame at hand was taken whole.
  Status write(Stream* stream, bool* whole);
  void finish_frame(Stream* stream);
  void end_stream(Stream* stream);
  Status write_failed(Stream* stream, int error);
  void update_pending();

  TcpWaitSet* waits_;  // or nullptr
  uint32_t piece_bytes_, unsent_bytes_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<uint8_t> queue_;  // channels, a ring
  uint32_t queue_begin_ = 0, queue_end_ = 0;
  uint32_t owed_ = 0;  // channels that owe a credit
  bool pending_ = false, wants_all_ = false, gives_credit_ = true;
};

}  // namespace treering
