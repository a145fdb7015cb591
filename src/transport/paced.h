// SPDX-License-Identifier: Apache-2.0
// Paced link: all connections of a rank, slowed down to one network link of a given speed, to try out slow links on one
// machine.
//
//   posts of a rank, to all peers   | m1 | m2    | m3 |      each message occupies the rank's one link for bytes / speed;
//   due                                  ^       ^    ^      when it is due it is posted on the connection below (store and forward)
//
// Until then it waits in its connection; payloads stay where they are, as of any posted message. A peer that reads
// nothing holds up its own messages alone. A rank posts at most kAheadUs of traffic ahead, so that queues stay as short
// as a network card's.
#pragma once

#include <memory>

#include "transport/connection.h"

namespace treering {

// The link of one rank; used by one thread at a time, as its connections are.
class PacedLink {
 public:
  explicit PacedLink(int mbps) : us_per_byte_(8.0 / mbps) {}

  bool has_room() const;
  // When the link has carried `bytes` more, in microseconds of the machine's monotonic clock.
  double carry(uint32_t bytes);

 private:
  double us_per_byte_;
  double free_us_ = 0;
};

// The connections to a peer, over the link.
PeerConnections pace(PeerConnections connections, const std::shared_ptr<PacedLink>& link);

}  // namespace treering
