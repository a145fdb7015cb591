// SPDX-License-Identifier: Apache-2.0
// What travels on a TCP stream: frames, each a header and, for a fragment of a message, its bytes. All integers are
// little-endian.
//
//   0     4    5    6    7       8       12        16    20     24     28     32     36    40
//   | mark|type|kind|wide|channel|message|signature|bytes|offset|length|popped|   whole   | `length` bytes ...
//
//   fragment   bytes [offset, offset + length) of message number `message` (from 0, modulo 2^32) of the channel
//   credit     `popped`: how many of the peer's messages on that channel the sender of the frame has popped; a fragment
//              says it too. And the arrival skew of one of them (stripes.h): `kind` is the late stream or 0, `wide` the
//              early one, `message` its number, `length` what was left
//   lost       the peer's stream `kind`, opened by attempt `message`, is broken at its reading end
//   goodbye    the sender of the frame leaves in order, and needs nothing more; what was lost may still follow
//
// `wide` of a fragment has two parts: bit 0, Message::wide; the others, how often the message was begun again (modulo
// 128) because a stream broke that carried a part of it. Fragments of different attempts do not make a message.
//
// A message of several fragments may come on several streams, in any order. The mark names the version: a change of the
// format, or of what a stream's number means, changes its last character.
#pragma once

#include <bit>
#include <cstdint>

#include "transport/tcp/stripes.h"
#include "transport/connection.h"

namespace treering {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie in memory");

inline constexpr uint32_t kTcpMark = 'T' | 'R' << 8 | 'T' << 16 | '6' << 24;

enum class TcpFrameType : uint8_t { kFragment = 1, kCredit = 2, kLost = 3, kGoodbye = 4 };

struct TcpFrame {
  uint32_t mark = kTcpMark;
  TcpFrameType type = TcpFrameType::kFragment;
  uint8_t kind = 0;
  uint8_t wide = 0;
  uint8_t channel = 0;
  uint32_t message = 0;
  uint32_t signature = 0;
  uint32_t bytes = 0;  // of the message
  uint32_t offset = 0;
  uint32_t length = 0;
  uint32_t popped = 0;
  uint64_t whole = 0;  // of a fragment: Message::whole
};
static_assert(sizeof(TcpFrame) == 40);

inline constexpr uint8_t kTcpAttempts = 128;
inline bool is_wide(const TcpFrame& fragment) { return (fragment.wide & 1) != 0; }
inline uint8_t attempt_of(const TcpFrame& fragment) { return fragment.wide >> 1; }
inline void begin_again(TcpFrame* fragment) { fragment->wide = static_cast<uint8_t>(fragment->wide + 2); }
// Whether attempt `a` was made after `b`; of all that are under way the numbers lie near each other.
inline bool is_later_attempt(uint8_t a, uint8_t b) {
  const uint8_t ahead = (a - b) % kTcpAttempts;
  return ahead > 0 && ahead < kTcpAttempts / 2;
}

inline void set_skew(const ArrivalSkew& skew, TcpFrame* credit) {
  credit->kind = skew.late;
  credit->wide = skew.early;
  credit->length = skew.left;
  credit->message = skew.message;
}
inline ArrivalSkew skew_of(const TcpFrame& credit) { return {credit.kind, credit.wide, credit.length, credit.message}; }

// Stream 0 is shared: both ranks send on it, messages up to this size and credits. Larger ones go on streams of the
// rank that sends them.
inline constexpr uint32_t kSharedStreamBytes = 4096;

// Bytes that travel for a message: a delivered one is a notice alone.
inline uint32_t tcp_payload(PayloadKind kind, uint32_t bytes) { return kind == PayloadKind::kDelivered ? 0 : bytes; }

}  // namespace treering
