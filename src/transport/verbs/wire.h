// SPDX-License-Identifier: Apache-2.0
// What two ranks write into each other's memory over a queue pair, and what they tell each other to connect it.
//
//   sender                                              receiver's block of memory for this sender
//   header, payload -- RDMA write with immediate ----->  channel 0 | place 0 | place 1 | ... | channel 1 | ...
//
//   a place     | unused | header | payload, or the data of an inline message |
//                                 ^ at a multiple of 64 bytes
//
// Over several rails a large payload is divided into fragments (fragments.h). Fragment 0 is written with the header by
// the channel's rail, each other one by another rail as a write with immediate. What is told of a channel otherwise
// goes by its rail, in order.
//
// Message n of a channel uses place n % places: it is posted only when message n - places was popped.
// The immediate is told by a completion after the bytes of its write and of those before it (InfiniBand Architecture
// Specification 1.4, volume 1, 9.4.3 and 10.8.3.3), so no memory is polled.
//
//   immediate   | type 4 | channel 8 | count 20 |
//     header    count: number of the message; its header is there
//     credit    count: how many messages of the channel the sender of the credit has popped
//     fragment  count: fragment 4 | number of the message 16; the fragment is there
//
// A header carries a credit of the other direction, too.
//
// Behind the channels of messages is a row of places for inline messages. There a rank tells where results of its call
// may be written (ShownOutput). A payload for there is written there, by a request before that of its header, which says
// kDelivered.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "transport/connection.h"

namespace treering::verbs {

static_assert(std::endian::native == std::endian::little, "headers are written as they lie in memory");

inline constexpr uint32_t kWireVersion = 5;

// Places for payloads, for each channel: kFifoDepth, or fewer where memory is short. With fewer than this many a sender
// would wait for a credit that is not due.
inline constexpr uint32_t kMinPlaces = kFifoDepth - kTellEvery + 1;

inline constexpr uint32_t kMaxRails = 4;
using RailSet = uint32_t;  // a bit for each rail
// Memory that is registered with each device of a rank: a key for each rail.
using RailKeys = std::array<uint32_t, kMaxRails>;
inline constexpr RailSet kAllRails = (1u << kMaxRails) - 1;

enum class ImmediateType : uint8_t { kHeader = 1, kCredit = 2, kFragment = 3 };

inline constexpr uint32_t kCountBits = 20, kChannelBits = 8;
inline constexpr uint32_t kCountMask = (1u << kCountBits) - 1;

struct Immediate {
  ImmediateType type = ImmediateType::kHeader;
  uint32_t channel = 0;
  uint32_t count = 0;  // modulo 2^20
};
inline uint32_t pack_immediate(const Immediate& immediate) {
  return static_cast<uint32_t>(immediate.type) << (kChannelBits + kCountBits) | immediate.channel << kCountBits |
         (immediate.count & kCountMask);
}
inline Immediate unpack_immediate(uint32_t word) {
  return {static_cast<ImmediateType>(word >> (kChannelBits + kCountBits)),
          word >> kCountBits & ((1u << kChannelBits) - 1), word & kCountMask};
}
// The full count behind one of 20 bits that is at most 2^19 ahead of `known`.
inline uint64_t full_count(uint64_t known, uint32_t count) {
  return known + ((count - static_cast<uint32_t>(known)) & kCountMask);
}

// The count of a fragment's immediate.
inline constexpr uint32_t kFragmentNumberBits = 16;
inline constexpr uint32_t kFragmentNumberMask = (1u << kFragmentNumberBits) - 1;
inline uint32_t pack_fragment(uint32_t fragment, uint64_t number) {
  return fragment << kFragmentNumberBits | (static_cast<uint32_t>(number) & kFragmentNumberMask);
}

struct Header {
  uint32_t signature = 0;
  uint32_t bytes = 0;
  uint64_t whole = 0;   // Message::whole
  uint32_t popped = 0;  // credit: modulo 2^32
  uint8_t kind = 0;
  uint8_t wide = 0;
  uint8_t fragments = 0;  // of the payload, which lies in the place; 0: there is none
  uint8_t unused = 0;
  std::byte data[kInlineBytes];  // of an inline message: `bytes` of them are written
};
inline constexpr size_t kHeaderBytes = offsetof(Header, data);
inline constexpr size_t kHeaderStride = 320;
static_assert(sizeof(Header) <= kHeaderStride && kHeaderBytes == 24);

// What a message of the row behind the channels holds.
struct ShownOutput {
  uint64_t operation = 0;  // 0: none
  uint64_t address = 0;
  uint64_t bytes = 0;
  RailKeys keys{};

  bool holds(uint64_t wanted, uint64_t offset, uint64_t size) const {
    return wanted != 0 && wanted == operation && offset <= bytes && size <= bytes - offset;
  }
};
static_assert(sizeof(ShownOutput) <= kInlineBytes);

// Where messages of a peer arrive, and behind that this rank's own headers, as they are sent; offsets in the block.
struct BlockLayout {
  uint32_t channels = 1;
  size_t place_bytes = 0;  // of a payload
  uint32_t places = kFifoDepth;

  // The row in which outputs are shown.
  uint32_t shows() const { return channels; }
  size_t data(uint32_t channel, uint64_t number) const {
    const size_t place = number % places;
    const size_t before = channel < channels ? (size_t{channel} * places + place) * stride(place_bytes)
                                             : channels * places * stride(place_bytes) + place * stride(0);
    return before + kDataOffset;
  }
  size_t header(uint32_t channel, uint64_t number) const { return data(channel, number) - kHeaderBytes; }
  // What the peer may write into.
  size_t bytes() const { return places * (channels * stride(place_bytes) + stride(0)); }
  size_t own_header(uint32_t channel, uint64_t number) const {
    return bytes() + (size_t{channel} * kFifoDepth + number % kFifoDepth) * kHeaderStride;
  }
  size_t all_bytes() const { return own_header(channels + 1, 0); }

 private:
  static constexpr size_t kDataOffset = 64;
  static size_t stride(size_t payload) {
    return kDataOffset + (std::max(payload, kInlineBytes) + kDataOffset - 1) / kDataOffset * kDataOffset;
  }
};

using Gid = std::array<unsigned char, 16>;

// A port of a device that a rank can use.
struct Rail {
  std::string device;
  uint8_t port = 0;
  uint8_t link_layer = 0;  // IBV_LINK_LAYER_*
  uint8_t mtu = 0;         // ibv_mtu
  uint16_t lid = 0;        // InfiniBand
  uint32_t gid_index = 0;
  Gid gid{};
  uint32_t mbps = 0;
};

// Where a rank takes the datagrams that try whether ports reach each other (probe.h).
struct ProbeAddress {
  uint32_t queue_pair = 0, key = 0;
};

struct ProbedRail {
  Rail rail;
  ProbeAddress probe;
};

// The info that every rank gives all others: its rails in order; none: it has none.
struct RankRails {
  std::vector<ProbedRail> rails;
};

// One end of a queue pair.
struct RailEnd {
  uint32_t number = 0;  // of the rail
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // sequence number
  Rail rail;
  uint32_t key = 0;  // of the block
};

// An introduction: one end of a link.
struct EndPoint {
  std::vector<RailEnd> rails;  // by their numbers; the link uses those that both ends have
  uint64_t block = 0;          // address of the block for the receiver of the introduction
  uint32_t channels = 0;
  uint64_t place_bytes = 0;
  uint32_t places = 0;
  bool is_connected = false, may_send = false;  // its sender (handshake.h)
  std::string refusal;                          // why its sender has no end; else empty
};

// clang-format off
template <typename V> void visit(V& v, Rail& m) { v(m.device); v(m.port); v(m.link_layer); v(m.mtu); v(m.lid); v(m.gid_index); v(m.gid); v(m.mbps); }
template <typename V> void visit(V& v, ProbeAddress& m) { v(m.queue_pair); v(m.key); }
template <typename V> void visit(V& v, ProbedRail& m) { v(m.rail); v(m.probe); }
template <typename V> void visit(V& v, RankRails& m) { v(m.rails); }
template <typename V> void visit(V& v, RailEnd& m) { v(m.number); v(m.queue_pair); v(m.first_packet); v(m.rail); v(m.key); }
template <typename V> void visit(V& v, EndPoint& m) { v(m.rails); v(m.block); v(m.channels); v(m.place_bytes); v(m.places); v(m.is_connected); v(m.may_send); v(m.refusal); }
// clang-format on

}  // namespace treering::verbs
