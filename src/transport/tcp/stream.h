// SPDX-License-Identifier: Apache-2.0
// How a stream of a TCP link is named when it is opened.
#pragma once

#include <cstdint>
#include <string>

namespace treering {

// A stream to a peer: its number (0: the shared one; 1 .. streams) and which attempt opened it.
struct PeerStreamId {
  PeerStreamId(uint32_t number = 0, uint32_t nth = 0)
      : index(number), attempt(nth) {}  // NOLINT(google-explicit-constructor): a number is one
  uint32_t index, attempt;
  bool operator==(const PeerStreamId&) const = default;
};

// Opens streams to other ranks.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // Asks for a stream to `peer`; returns at once. The socket, or why there is none, arrives from any thread. Asked once
  // for each attempt at each stream; a later attempt takes another way where there is one.
  virtual void open_stream(uint32_t peer, PeerStreamId stream) = 0;
};

}  // namespace treering
