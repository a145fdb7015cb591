// SPDX-License-Identifier: Apache-2.0
// The receiving half of a TCP link: reads the streams that the peer sends on and puts messages together.
//
//   stream 0:  | header | fragment | header | ...     a header is read with what follows it, into the stream's buffer;
//   stream 1:  | header | fragment ...                the rest of a fragment straight into its message's memory
//
//   channel:   | message 7 | message 8: 3 of 5 fragments | - | ...     kFifoDepth places, used in turn
//
// A stream that ends, in whatever way, is no failure: losses() tells of it, and the peer sends again what it carried.
// Fragments of a message that is here already, or of an attempt that was given up, are read and thrown away.
//
// Invariant: no field of a frame is used before it was checked; what is wrong becomes the link's failure.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "transport/tcp/buffers.h"
#include "transport/tcp/resume.h"
#include "transport/wait_set.h"
#include "transport/tcp/wire.h"

namespace treering {

class TcpReceiver {
 public:
  TcpReceiver(uint32_t channels, uint32_t max_message_bytes, WaitSet* waits);
  ~TcpReceiver();

  // One that takes the place of another has a greater key. The peer sends again on it what the other carried, so the
  // first frame that comes ends the other. False: there is one with that key.
  bool add_stream(uint32_t index, uint64_t key, int fd);
  // Takes what has arrived, in reasonable portions. All frames are told to `on_frame`, which returns a Status.
  template <typename OnFrame>
  Status read(OnFrame on_frame);
  // A stream was there, and all have ended.
  bool ended() const { return streams_.empty() && ended_; }
  bool has_ended_some() const { return ended_; }
  bool has_streams() const { return !streams_.empty() || ended_; }
  // Streams that have ended since the last call, otherwise than by a later one.
  std::vector<TcpLoss> take_losses() { return std::exchange(losses_, {}); }
  bool has_losses() const { return !losses_.empty(); }
  // The shared stream with the greatest key that can be sent on; its descriptor, which stays the receiver's, or -1.
  int newest_shared(uint64_t* key) const;
  // Nothing more can be sent on the shared stream, though something may still come.
  void note_half_dead(uint64_t key);

  const Message* front(uint32_t channel) const;
  void pop(uint32_t channel);
  // How the streams were through with the first message of the channel, which is there.
  const ArrivalSkew& skew(uint32_t channel) const;
  uint32_t popped(uint32_t channel) const { return channels_[channel].popped; }
  // A stream has broken, or another has taken its place: what is here already may come again.
  bool has_resumed() const { return resumed_; }
  // Whether something came again that was popped, since the last question.
  bool take_repeated() { return std::exchange(repeated_, false); }
  // Bytes from all streams.
  uint64_t received() const { return received_; }
  size_t memory() const { return buffers_.allocated(); }

 private:
  static constexpr size_t kBufferBytes = 8192;
  static constexpr int kMaxReads = 16;  // of one stream in one portion
  // After so many looks at the streams of large messages without any, only every fourth turn looks at one.
  static constexpr uint32_t kHotLooks = 64, kSeldom = 4;

  struct Arrival {
    bool begun = false;
    uint8_t attempt = 0;
    uint64_t streams = 0;  // that have brought a part, by bits
    bool complete() const { return begun && received == payload; }
    Message message;
    uint32_t payload = 0, announced = 0, received = 0;  // bytes
    std::byte* data = nullptr;
    ArrivalSkew skew;
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
    uint64_t key;
    int fd;
    bool ended = false;
    bool spoke = false;         // a frame has come
    bool half_dead = false;     // nothing can be sent on it
    size_t begin = 0, end = 0;  // of what is in the buffer
    Arrival* arrival = nullptr;
    std::byte* at = nullptr;  // where the rest of the fragment goes; nullptr: nowhere
    size_t left = 0;
    std::vector<Part> parts;    // the latest
    size_t part = 0;            // at hand
    Clock::time_point drained;  // when it had no more, last
    std::byte buffer[kBufferBytes];
  };

  // Bytes received; 0: nothing for now, or the end.
  size_t receive(Stream* stream, bool* drained);
  void lose(Stream* stream, ssize_t received, int error);
  void end_others(const Stream& stream);
  void take_payload(Stream* stream);
  // The next whole header in the buffer, or nullptr.
  const TcpFrame* next_header(Stream* stream, TcpFrame* copy);
  Status begin_fragment(Stream* stream, const TcpFrame& frame);
  Status check(const TcpFrame& frame) const;
  bool is_popped(const TcpFrame& fragment) const;
  void begin_arrival(Arrival* arrival, const TcpFrame& frame);
  void give_up(Arrival* arrival);
  void give_up_parts_of(uint32_t index);
  void throw_away(Stream* stream, uint32_t bytes);
  void take(Stream* stream, size_t bytes);
  void begin_part(Stream* stream, const Arrival* arrival, uint32_t message);
  void end_fragment(Stream* stream);
  ArrivalSkew compare_parts(const Arrival* arrival, uint32_t message) const;
  void end_stream(Stream* stream);
  void remove_ended();

  WaitSet* waits_;  // or nullptr
  uint32_t max_message_bytes_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<Stream>> streams_;
  bool ended_ = false;     // at least one
  bool repeated_ = false;  // a message that was popped came again: its sender has not heard of it
  bool resumed_ = false;   // one has taken another's place, or ended: what is here may come again
  std::vector<TcpLoss> losses_;
  std::vector<uint64_t> spoken_;  // by index, the greatest key of a stream that brought a frame
  std::vector<std::byte> thrown_away_;
  int ends_ = 0;     // to be removed
  size_t next_ = 0;  // of the streams but the first, the one to be read next
  uint32_t turns_ = 0, hot_looks_ = 0;
  uint64_t received_ = 0;
  TcpBuffers buffers_;
};

template <typename OnFrame>
Status TcpReceiver::read(OnFrame on_frame) {
  // Small messages come on the first stream; of the others one is looked at in each turn.
  const size_t others = streams_.size() - (streams_.empty() ? 0 : 1);
  const bool look_at_others = others > 0 && (hot_looks_ > 0 || ++turns_ % kSeldom == 0);
  if (look_at_others) next_ = next_ + 1 >= others ? 0 : next_ + 1;
  if (hot_looks_ > 0) --hot_looks_;
  for (size_t turn = 0; turn < streams_.size() && turn < (look_at_others ? 2 : 1); ++turn) {
    Stream* stream = streams_[turn == 0 ? 0 : 1 + next_].get();
    bool drained = false;
    for (int i = 0; i < kMaxReads && !drained && !stream->ended; ++i) {
      const size_t got = receive(stream, &drained);
      if (got > 0 && turn > 0) hot_looks_ = kHotLooks;
      take_payload(stream);
      TcpFrame frame;
      while (stream->left == 0 && next_header(stream, &frame) != nullptr) {
        TR_RETURN_IF_ERROR(check(frame));
        if (!std::exchange(stream->spoke, true)) end_others(*stream);
        TR_RETURN_IF_ERROR(on_frame(frame));
        if (frame.type == TcpFrameType::kFragment) TR_RETURN_IF_ERROR(begin_fragment(stream, frame));
        take_payload(stream);
      }
    }
    if (drained && stream->index > 0) stream->drained = Clock::now();
  }
  if (ends_ > 0) remove_ended();
  return {};
}

}  // namespace treering
