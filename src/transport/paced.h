// SPDX-License-Identifier: Apache-2.0
// Paced link: any connection, slowed down to a network link of a given speed, to try out slow links on one machine.
//
//   posts of a rank, to all peers   | m1 | m2    | m3 |      each message occupies the rank's one link for bytes / speed;
//   due                                  ^       ^    ^      when it is due it is posted on the connection below (store and forward)
//
// Until then it waits in the rank's queue; payloads stay where they are, as of any posted message. A rank posts at most
// kAheadUs of traffic ahead, so that queues stay as short as a network card's.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "transport/connection.h"

namespace treering {

// The link of one rank; used by one thread at a time, as its connections are.
class PacedLink final : public SendQueue {
 public:
  explicit PacedLink(int mbps) : us_per_byte_(8.0 / mbps) {}

  bool has_room() const;
  void carry(Connection* connection, const Message& message);
  bool flush() override;
  Status health() const override;

 private:
  struct Waiting {
    Connection* connection;
    Message message;
    double due_us;
    std::array<std::byte, kInlineBytes> inline_data;
  };

  double us_per_byte_;
  double free_us_ = 0;
  std::deque<Waiting> waiting_;
};

std::unique_ptr<Connection> pace_connection(std::unique_ptr<Connection> connection, std::shared_ptr<PacedLink> link);

}  // namespace treering
