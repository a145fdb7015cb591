// SPDX-License-Identifier: Apache-2.0
// What two ranks tell each other over UCX. Each message is an active message: a header, and behind it the payload where
// there is one.
//
//   | Header: whose, of which channel, its number, how many of the other direction were popped | payload |
//
// UCX promises no order between active messages: the number tells which is next (incoming.h). Everything but kMessage is
// a header alone.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string>

#include "core/bytes.h"
#include "core/status.h"
#include "transport/connection.h"

namespace treering::ucx {

static_assert(std::endian::native == std::endian::little, "headers are sent as they lie in memory");

inline constexpr uint32_t kWireVersion = 2;
inline constexpr unsigned kActiveMessage = 0;  // the number of ours

enum class Type : uint8_t {
  kMessage = 1,
  kCredit,      // `popped` of a channel
  kHello,       // a rank tries whether it reaches the receiver
  kHelloHeard,  // ... and its sender has heard the receiver
  kBye,         // the last of a rank that leaves
  kByeHeard,    // its sender has all that came before
  kPush,        // nothing: once UCX has taken it, all that went before has left the process (Link::flush)
};
inline constexpr size_t kTypes = 8;  // with 0

struct Header {
  uint64_t key = 0;    // of the receiver, as its info gave it: not what was meant for another process
  uint64_t whole = 0;  // Message::whole
  uint32_t from = 0;   // rank
  uint32_t channel = 0;
  uint32_t number = 0;  // of the message in its channel; modulo 2^32
  uint32_t popped = 0;  // credit: messages of the other direction; modulo 2^32
  uint32_t signature = 0;
  uint32_t bytes = 0;
  Type type = Type::kMessage;
  uint8_t kind = 0;
  uint8_t wide = 0;
  uint8_t has_payload = 0;
  uint32_t unused = 0;
};
static_assert(sizeof(Header) == 48);

// The info that every rank gives all others.
struct RankInfo {
  uint64_t key = 0;
  uint32_t channels = 0;
  uint64_t place_bytes = 0;  // the longest payload
  std::string address;       // of its worker
};
// clang-format off
template <typename V> void visit(V& v, RankInfo& m) { v(m.key); v(m.channels); v(m.place_bytes); v(m.address); }
// clang-format on

// Whether a message can be what its header says, with `length` bytes behind it.
inline Status check(const Header& header, size_t length, size_t place_bytes) {
  const bool is_inline = header.kind == static_cast<uint8_t>(PayloadKind::kInline);
  const size_t most = is_inline ? kInlineBytes : place_bytes;
  const bool carries = header.has_payload != 0;
  if (header.kind > static_cast<uint8_t>(PayloadKind::kDelivered) || header.wide > 1 || header.has_payload > 1 ||
      (carries && header.bytes > most) || (is_inline && header.bytes > 0 && !carries))
    return {trSystemError, fmt::format("it sent a message of kind {} with {} bytes; at most {} are possible",
                                       header.kind, header.bytes, most)};
  if (length != (carries ? header.bytes : 0))
    return {trSystemError,
            fmt::format("it sent a message of {} bytes, and says that they are {}", length, header.bytes)};
  return {};
}

}  // namespace treering::ucx
