// SPDX-License-Identifier: Apache-2.0
// VerbsLink: this rank and one peer, joined by a queue pair for each rail, which the connections of all channels share.
//
//   post() -> header and payload wait in the link -> a work request -> peer's place, and an immediate
//                                               -> for each other rail one: a fragment of the payload, and an immediate
//   front() <- header and payload in this rank's block <- completion of a receive
//   pop()   -> a credit, with the next header of the channel, or by itself for every kTellEvery-th message
//
// The end at the peer is made by an introduction, which may come before this rank has to do with the peer, or after it
// has posted: what was posted waits until both ends are connected (handshake.h).
//
// Invariants: at most kFifoDepth messages of a channel are not popped, so a header or place is written only when it
// is not read; what a peer has written is checked and copied before it is used; released() counts a message whose payload
// the cards have written, and which the peer's cards have acknowledged. Used by one thread at a time, but for hear(),
// depart() and stop(), which other threads call meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/log.h"
#include "transport/connection.h"
#include "transport/verbs/devices/device.h"
#include "transport/verbs/fragments.h"
#include "transport/verbs/registered_regions.h"
#include "transport/verbs/registered_staging.h"

namespace treering::verbs {

// What all links of a rank share.
struct Card {
  Devices devices;  // by rail
  void (*log)(LogLevel level, const std::string& text) = nullptr;
  std::unique_ptr<RegisteredStaging> staging;  // of this rank
  std::unique_ptr<RegisteredRegions> regions;  // of the user, that messages may refer to

  // Where a message's payload lies, and its keys.
  Status find_payload(const Message& message, Payload* payload) const;
};

struct LinkOptions {
  uint32_t peer = 0;
  std::string peer_name;  // as error texts call it: "rank 3 (pid 17)"
  uint32_t channels = 1;
  size_t place_bytes = 0;        // the longest payload
  uint32_t places = kFifoDepth;  // of a channel; the peer may have another number of them
  PathOptions path = {};
  RailSet rails = kAllRails;             // of this rank's, by which it reaches the peer
  uint32_t least_divided = kMinDivided;  // bytes of a payload
};

class VerbsLink : public SendQueue {
 public:
  // Sends an introduction to the peer; any thread, but not after finish() or end_introductions().
  using Introduce = std::function<void(const EndPoint& own)>;

  // A link for which there is no queue pair or memory has failed from the beginning, and tells the peer why.
  static std::shared_ptr<VerbsLink> make(std::shared_ptr<const Card> card, LinkOptions options, Introduce introduce);

  // This rank needs the peer.
  virtual void start() = 0;
  // An introduction of the peer; its departure, after everything that it sent.
  virtual void hear(const EndPoint& peer) = 0;
  virtual void depart() = 0;
  // Nothing is written any more, here or by the peer.
  virtual void stop() = 0;

  // Nothing will be posted or read any more: sends what waits. True when the peer's card has all of it, or it cannot
  // have it.
  virtual bool finish() = 0;
  // No introduction is made any more.
  virtual void end_introductions() = 0;
  // Asks for an event when something comes.
  virtual void arm() = 0;
  // The connection of a channel; keeps the link alive.
  virtual std::unique_ptr<Connection> connection(uint32_t channel) = 0;
};

}  // namespace treering::verbs
