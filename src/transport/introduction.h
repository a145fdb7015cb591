// SPDX-License-Identifier: Apache-2.0
// Introductions: what a transport of one rank tells the same transport of another, when the two first have to do with
// each other or connect again. They take the control connections, which encrypt them.
//
//   rank a: introduce(b, bytes)              ---- control tree ------------------> rank b: introduced(a, bytes, -1)
//   rank a: introduce(b, bytes, connects)    ---- a connection of its own -------> rank b: introduced(a, bytes, socket)
//           connected(b, bytes, ok, socket)  <--- accepted, plain from here on --'
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/status.h"

namespace treering {

struct Introduction {
  std::string bytes = {};  // of any length up to kMaxIntroductionBytes
  // A socket comes along: connected, authenticated, non-blocking TCP.
  bool connects = false;
  uint32_t way = 0;    // which of the networks between both hosts is tried first, modulo their number
  bool again = false;  // it was connected before: what refuses this time may be a middlebox
};
inline constexpr size_t kMaxIntroductionBytes = 32 << 20;
inline constexpr size_t kIntroductionOverhead = 256;  // the transport's name and lengths

// What a transport of a rank asks for; any thread.
class Introducer {
 public:
  virtual ~Introducer() = default;
  // Returns at once. It is for connect() and what follows: before that the ranks do not listen yet. A communicator
  // whose ranks all share memory (TransportRow::maps) has no control connections any more. Without a socket an
  // introduction may be lost while the control tree is being mended: a transport that gets no answer introduces itself
  // again. With a socket, connected() tells how it went.
  virtual void introduce(uint32_t peer, Introduction introduction) = 0;
  // Takes a socket, shut down for writing, whose last bytes the peer's kernel has not acknowledged: it is read until it
  // has, or nothing has moved for the communicator's deadline (0: there is none). A closed socket would answer by a
  // reset, and send no more.
  virtual void drain(int fd, std::chrono::milliseconds deadline) = 0;
  // How many network interfaces of this process lead to the peer.
  virtual uint32_t interfaces_to(uint32_t peer) const = 0;
};

// What it is told, from any thread; it owns the sockets.
class IntroductionTaker {
 public:
  // By a peer. `fd`: -1 without a socket.
  virtual void introduced(uint32_t peer, const std::string& bytes, int fd) = 0;
  // How an introduction with a socket went; the socket, or -1 and why there is none.
  virtual void connected(uint32_t peer, const std::string& bytes, const Status& status, int fd) = 0;
  // The peer has left, in order. Its sockets came before; other introductions may still be under way.
  virtual void departed(uint32_t peer) = 0;
  // The peer's process has ended. The call that needs it fails by other means.
  virtual void ended(uint32_t peer) { (void)peer; }

 protected:
  ~IntroductionTaker() = default;
};

}  // namespace treering
