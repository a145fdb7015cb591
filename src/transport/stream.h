// SPDX-License-Identifier: Apache-2.0
// Streams: authenticated, connected, non-blocking sockets between two ranks, which the bootstrap opens for a transport.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace treering {

// A stream to a peer: its number (0: the shared one; 1 .. streams) and which attempt opened it.
struct PeerStreamId {
  PeerStreamId(uint32_t number = 0, uint32_t nth = 0) : index(number), attempt(nth) {}  // NOLINT: a number is one
  uint32_t index, attempt;
  bool operator==(const PeerStreamId&) const = default;
};

// Opens streams to other ranks.
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // Asks for a stream to `peer`; returns at once. The socket, or why there is none, arrives from any thread. Asked once for each
  // attempt at each stream; a later attempt takes another way where there is one.
  virtual void open_stream(uint32_t peer, PeerStreamId stream) = 0;
};

// The same, for all that a transport needs of the bootstrap.
class StreamService : public StreamSource {
 public:
  // Takes a socket, shut down for writing, whose last bytes the peer's kernel has not acknowledged: it is read until it has. A
  // closed socket would answer by a reset, and send no more.
  virtual void see_off(int fd) = 0;
  // How many network interfaces of this process lead to the peer.
  virtual uint32_t interfaces_to(uint32_t peer) const = 0;
};

// Takes the streams of a rank, from any thread; it owns the sockets.
class StreamTaker {
 public:
  // A stream that the peer has opened.
  virtual void incoming(uint32_t peer, PeerStreamId stream, int fd) = 0;
  // The answer to open_stream().
  virtual void outgoing(uint32_t peer, PeerStreamId stream, const Status& status, int fd) = 0;
  // The peer has left. What it opened came before.
  virtual void departed(uint32_t peer) = 0;

 protected:
  ~StreamTaker() = default;
};

}  // namespace treering
