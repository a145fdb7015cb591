// SPDX-License-Identifier: Apache-2.0
// TCP transport: connections between ranks that share no memory.
//
// A TcpLink joins this rank and one peer of one communicator. The connections of all its channels share a few streams
// (sockets), which carry frames (wire.h):
//
//   this rank                                                        peer
//   channel 0 --.   small ones, credits  <--- stream 0 --->                             .--> channel 0
//   channel 1 ---+-> queue of messages --+--- stream 1 --->+-- messages put together ---+--> channel 1
//                    cut into fragments  '--- ...      --->'
//                <------------------ the same on streams that the peer opened ------------------
//
// Stream 0 is opened by the rank that sends first and shared by both, so that acknowledgements travel with answers; a
// rank that leaves waits until the peer's kernel has what it sent there. If there are several, each rank sends on the
// one that was opened last, or on that of `keeps_shared` if two were opened at once, and reads them all.
//
// A stream that breaks, or whose peer acknowledges nothing for long, is opened again, and what it may have lost is sent
// again (outbox.h), for as long as the communicator's deadline allows. Only then the link has failed.
//
// Invariants: any other stream carries frames one way only, from the rank that opened it, so that a rank that leaves
// closes its sockets and the kernel still delivers everything; a fragment goes to a stream that has room now, so a slow
// stream holds back no more than it was given; released() counts messages whose bytes the kernel has taken, and which
// the peer has popped or the link has copied; at most kFifoDepth messages of a channel are unread, which bounds the
// receiver's memory; nothing has a thread: every call moves what can be moved. Used by one thread at a time, but for
// deliver_outgoing() and deliver_incoming().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "core/config.h"
#include "transport/tcp/congestion.h"
#include "transport/tcp/resume.h"
#include "transport/wait_set.h"
#include "transport/tcp/zero_copy.h"
#include "transport/connection.h"
#include "transport/tcp/stream.h"

namespace treering {

struct TcpOptions {
  uint32_t peer = 0;          // rank
  std::string peer_name;      // as error texts call it: "rank 3 (pid 17)"
  std::string own_name;       // the same of this rank
  uint32_t channels = 1;      // at most 256
  uint32_t streams = 1;       // of large messages; the peer may open another number, kMaxTcpStreams at most
  bool keeps_shared = false;  // true for one of the two ranks
  uint32_t fragment_bytes = 128 << 10;
  uint32_t max_message_bytes = 64 << 20;  // larger ones of the peer are an error
  const std::byte* staging = nullptr;     // of this rank
  std::chrono::milliseconds deadline{0};  // of the communicator: how long a link may be without a stream; 0: for ever
  // Takes a socket, shut down for writing, whose last bytes the peer's kernel has not acknowledged when the link ends.
  // Until it has, what comes must be read: a closed socket would answer by a reset, and send no more.
  std::function<void(int fd)> drain = {};
  TcpZeroCopy zero_copy = TcpZeroCopy::kWhereItPays;
  TcpCongestion congestion = {};
  std::shared_ptr<WaitSet> waits;  // to which the streams are added; may be shared by links, and missing
};

class TcpLink : public SendQueue {
 public:
  // The source is used until finish(); a delivery that may come late is made through a weak pointer.
  static std::shared_ptr<TcpLink> make(TcpOptions options, StreamSource* source);

  // Any thread; the link owns the socket. One that could not be opened is asked for again, but after an answer that is
  // final: trInvalidUsage: the peer has left; any error but trRemoteError and trTimeout.
  virtual void deliver_outgoing(PeerStreamId stream, Status status, int fd) = 0;
  virtual void deliver_incoming(PeerStreamId stream, int fd) = 0;
  // The peer has left. What it opened was delivered before.
  virtual void deliver_departure() = 0;
  // The peer's process has ended: when this rank leaves it waits for the peer no longer.
  virtual void deliver_end() = 0;

  // Before the rank leaves, again and again until it is true: nothing will be posted or read any more, and the peer
  // needs this link no longer. Otherwise what it may lack is sent, by another network where the first does not answer,
  // for a bounded time (TcpTimeouts).
  virtual bool may_finish() = 0;
  // Destruction says it too, and waits a moment for the peer's kernel. When several links end, all are told first.
  virtual void finish() = 0;

  // What is under way is not needed: destruction waits for nothing, and the socket is not drained.
  virtual void abandon() = 0;

  // The connection of a channel; keeps the link alive.
  virtual std::unique_ptr<Connection> connection(uint32_t channel) = 0;
  // Bytes of memory held for messages under way to this rank.
  virtual size_t receive_memory() const = 0;
  // Sends that the kernel was asked not to copy.
  virtual uint64_t zero_copy_sends() const = 0;
};

}  // namespace treering
