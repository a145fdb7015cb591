// SPDX-License-Identifier: Apache-2.0
// Paced link: any connection, slowed down to a network link of a given speed, to try out slow links on one machine.
//
//   posts of a rank, to all peers   | m1 | m2    | m3 |      each message occupies the rank's one link for bytes / speed;
//   due                                  ^       ^    ^      its receiver sees it when it is due (store and forward)
//
// The due time travels with the message, in microseconds of the machine's monotonic clock. A rank posts at most
// kAheadUs of traffic ahead, so that queues stay as short as a network card's.
#pragma once

#include <memory>

#include "transport/connection.h"

namespace treering {

// The link of one rank; used by one thread at a time, as its connections are.
class PacedLink {
 public:
  explicit PacedLink(int mbps) : us_per_byte_(8.0 / mbps) {}

  static uint64_t now_us();
  bool has_room() const { return free_us_ <= static_cast<double>(now_us() + kAheadUs); }
  // When the link has carried `bytes` more.
  uint64_t carry(uint32_t bytes);

 private:
  static constexpr uint64_t kAheadUs = 20'000;
  static constexpr uint32_t kHeaderBytes = 64;

  double us_per_byte_;
  double free_us_ = 0;
};

std::unique_ptr<Connection> pace_connection(std::unique_ptr<Connection> connection, std::shared_ptr<PacedLink> link);

}  // namespace treering
