// The receiving half of a TCP link: reads the streams that the peer sends on and puts messages together.
//
//   stream 0:  | header | piece | header | piece ...     a header is read with what follows it, into the stream's buffer;
//   stream 1:  | header | piece ...                      the rest of a piece straight into its message's memory
//
//   channel:   | message 7 | message 8: 3 of 5 pieces | - | ...    kFifoDepth places, used in turn
//
// Invariant: no field of a frame is used before it was checked; what is wrong becomes the link's failure.
#pragma once

#include <chrono>
#include <vector>

#include "transport/tcp_wait.h"
#include "transport/tcp_wire.h"

namespace treering {

// Memory of messages, in sizes of powers of two; what was given back is given out again.
class TcpBuffers {
 public:
  explicit TcpBuffers(size_t most) {
    for (auto& free : free_) free.reserve(most);
  }
  ~TcpBuffers();
  TcpBuffers(const TcpBuffers&) = delete;
  TcpBuffers& operator=(const TcpBuffers&) = delete;

  static uint32_t size_class(uint32_t bytes) { return static_cast<uint32_t>(std::bit_width(bytes - 1)); }
  std::byte* take(uint32_t size_class);
  void give_back(uint32_t size_class, std::byte* memory) { free_[size_class].push_back(memory); }
  size_t allocated() const { return allocated_; }

 private:
  std::vector<std::byte*> free_[33];
  size_t allocated_ = 0;
};

class TcpReceiver {
 public:
  TcpReceiver(uint32_t channels, uint32_t max_message_bytes, TcpWaitSet* waits);
  ~TcpReceiver();

  // Of stream 0 there may be two, if both ranks opened it.
  void add_stream(uint32_t index, int fd);
  // Drops stream 0, on which nothing has come.
  void drop_shared();
  // Takes what has arrived, in reasonable portions. Frames, each with a credit, are told to `on_credit`, which returns a Status.
  template <typename OnCredit>
  Status read(OnCredit on_credit);
  bool has_streams() const { return !streams_.empty() || ended_; }
  // The peer has ended all streams, between frames.
  bool ended() const { return streams_.empty() && ended_; }

  const Message* front(uint32_t channel) const;
  void pop(uint32_t channel);
  // How the streams were through with the first message of the channel, which is there.
  const TcpLateness& lateness(uint32_t channel) const;
  uint32_t popped(uint32_t channel) const { return channels_[channel].popped; }
  // Bytes from all streams.
  uint64_t received() const { return received_; }
  size_t memory() const { return buffers_.allocated(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kBufferBytes = 8192;
  static constexpr int kMostReads = 16;  // of one stream in one portion
  // After so many looks at the streams of large messages without any, only every fourth turn looks at one.
  static constexpr uint32_t kPatience = 64, kSeldom = 4;

  struct Arrival {
    bool begun = false;
    Message message;
    uint32_t payload = 0, announced = 0, received = 0;  // bytes
    std::byte* data = nullptr;
    TcpLateness lateness;
    alignas(64) std::byte small[kInlineBytes];
  };
  struct Channel {
    uint32_t popped = 0;
    Arrival arrivals[kFifoDepth];
  };
  struct Part {  // of a large message, on one stream
    const Arrival* arrival = nullptr;
    uint32_t message = 0, bytes = 0;
    Clock::time_point begun, ended;
  };
  struct Stream {
    uint32_t index;
    int fd;
    bool ended = false;
    size_t begin = 0, end = 0;  // of what is in the buffer
    Arrival* arrival = nullptr;
    std::byte* at = nullptr;  // where the rest of the piece goes
    size_t left = 0;
    std::vector<Part> parts;    // the latest
    size_t part = 0;            // at hand
    Clock::time_point drained;  // when it had no more, last
    std::byte buffer[kBufferBytes];
  };

  // Bytes received; 0: nothing for now, or the end.
  Status receive(Stream* stream, size_t* got, bool* drained);
  void take_payload(Stream* stream);
  // The next whole header in the buffer, or nullptr.
  const TcpFrame* next_header(Stream* stream, TcpFrame* copy);
  Status begin_piece(Stream* stream, const TcpFrame& frame);
  Status check(const TcpFrame& frame) const;
  void begin_part(Stream* stream, const Arrival* arrival, uint32_t message);
  void end_piece(Stream* stream);
  TcpLateness compare_parts(const Arrival* arrival, uint32_t message) const;
  void end_stream(Stream* stream);
  void remove_ended();

  TcpWaitSet* waits_;  // or nullptr
  uint32_t max_message_bytes_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<Stream>> streams_;
  bool ended_ = false;  // at least one
  int ends_ = 0;        // to be removed
  size_t next_ = 0;     // of the streams but the first, the one to be read next
  uint32_t turns_ = 0, patience_ = 0;
  uint64_t received_ = 0;
  TcpBuffers buffers_;
};

template <typename OnCredit>
Status TcpReceiver::read(OnCredit on_credit) {
  // Small messages come on the first stream; of the others one is looked at in each turn.
  const size_t others = streams_.size() - (streams_.empty() ? 0 : 1);
  const bool look_at_others = others > 0 && (patience_ > 0 || ++turns_ % kSeldom == 0);
  if (look_at_others) next_ = next_ + 1 >= others ? 0 : next_ + 1;
  if (patience_ > 0) --patience_;
  for (size_t turn = 0; turn < streams_.size() && turn < (look_at_others ? 2 : 1); ++turn) {
    Stream* stream = streams_[turn == 0 ? 0 : 1 + next_].get();
    bool drained = false;
    for (int i = 0; i < kMostReads && !drained && !stream->ended; ++i) {
      size_t got = 0;
      TR_RETURN_IF_ERROR(receive(stream, &got, &drained));
      if (got > 0 && turn > 0) patience_ = kPatience;
      take_payload(stream);
      TcpFrame frame;
      while (stream->left == 0 && next_header(stream, &frame) != nullptr) {
        TR_RETURN_IF_ERROR(check(frame));
        TR_RETURN_IF_ERROR(on_credit(frame));
        if (frame.type == TcpFrameType::kPiece) TR_RETURN_IF_ERROR(begin_piece(stream, frame));
        take_payload(stream);
      }
    }
    if (drained && stream->index > 0) stream->drained = Clock::now();
  }
  if (ends_ > 0) remove_ended();
  return {};
}

}  // namespace treering
