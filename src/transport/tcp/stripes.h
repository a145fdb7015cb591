// SPDX-License-Identifier: Apache-2.0
// StripeScheduler: stripes large messages across the streams of a link, so that all are through with a message at the
// same time, whatever paths they take.
//
//   stream 1  |-- message 7 --|-- message 8 --|         the receiver sees when each part is through, and its credit tells
//   stream 2  |------ message 7 ------|---- 8 ---        which stream was first, which last, and how much of the last one's
//                             ^ left:  |<--->|           part was left when the first was through
//
// The sender moves a part of that at once, by the next fragments, if more is under way already (what is behind stays
// behind), and a part for good, by the streams' weights. It learns from one message for each round trip: what was
// striped before the last shift says nothing about it.
//
// No rate is computed: a stream that gets little looks slow by its latency alone, and would get less and less. And no
// acknowledgement is looked at: those that the sender's kernel has wait behind what goes the other way (docs/tcp.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace treering {

// The arrival skew of the parts of one message.
struct ArrivalSkew {
  uint8_t late = 0, early = 0;  // numbers of streams, from 1; late 0: nothing to tell
  uint32_t left = 0;            // bytes of the late one's part that came after the early one's
  uint32_t message = 0;         // its number
};

class StripeScheduler {
 public:
  explicit StripeScheduler(uint32_t streams) : streams_(streams) {}

  // Streams are counted from 1, as on the wire.
  void open(uint32_t stream);
  void close(uint32_t stream) { streams_[stream - 1].open = false; }
  // The stream's part of a message, times the number of streams.
  double weight(uint32_t stream) const { return streams_[stream - 1].weight; }
  // Smaller ones go whole to a stream.
  bool stripes(uint32_t message) const;

  // The stream for the next fragment of a message of so many bytes: of those that are open and for which
  // `has_room(stream)` the one that is furthest behind its part; 0: none. One that has no room does not hold up the
  // others; and a whole message does not go to one that is slow.
  template <typename HasRoom>
  uint32_t next(uint32_t message, HasRoom has_room) const {
    const double least_weight = find_least_weight(message);
    uint32_t best = 0;
    for (uint32_t number = 1; number <= streams_.size(); ++number) {
      const Stream& stream = streams_[number - 1];
      if (!stream.open || stream.weight < least_weight || !has_room(number)) continue;
      if (best == 0 || stream.due < streams_[best - 1].due) best = number;
    }
    return best;
  }
  // How much of a message with `left` bytes left the stream gets as its next fragment, at most `most`: what makes all
  // streams be through with it at the same time.
  uint32_t fragment_bytes(uint32_t stream, uint32_t message, uint32_t left, uint32_t most) const;
  void gave(uint32_t stream, uint32_t message, uint32_t bytes);
  // Bytes of striped messages that all streams were given so far.
  uint64_t given() const { return given_; }

  // What the receiver tells about a message that was given as bytes [begin, end) of all that were; false: there are no
  // such streams.
  bool learn(const ArrivalSkew& skew, uint64_t begin, uint64_t end);

 private:
  struct Stream {
    bool open = false;
    double weight = 1;
    double due = 0;  // bytes that it was given, by its weight
  };
  double find_least_weight(uint32_t message) const;
  double due(const Stream& stream) const;

  std::vector<Stream> streams_;
  double clock_ = 0;                  // the due of the stream that was given something last, before that
  uint64_t given_ = 0, learned_ = 0;  // bytes; when it learned last
  uint32_t lessons_ = 0;
};

}  // namespace treering
