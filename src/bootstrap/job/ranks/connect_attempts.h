// SPDX-License-Identifier: Apache-2.0
// ConnectAttempts: what a rank does when an attempt to connect to another one has failed: it tries again after a pause,
// or tells why there is no connection. No I/O, no clock.
//
// A process that has too many connections at once drops some, before it has heard what they want. A firewall may refuse
// for a moment. At the limit of descriptors some may be closed meanwhile.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/status.h"

namespace treering {

constexpr uint32_t kMaxConnectAttempts = 8;
constexpr uint32_t kRefusals = 3;  // attempts that are left when a refusal counts: some 0.6 s after the first
constexpr auto kConnectPause = std::chrono::milliseconds(20);  // twice as long each time
// How long all attempts take. If nothing answers, the kernel asks again after 1 s, 3 s, 7 s ..., and the link by
// another introduction.
constexpr auto kMinConnectTime = std::chrono::seconds(2), kMaxConnectTime = std::chrono::seconds(30);

class ConnectAttempts {
 public:
  // `again`: the ranks were connected before (transport/introduction.h). `timeout_ms`: the rank's deadline; 0: none.
  ConnectAttempts(bool again, int timeout_ms, Clock::time_point now) : again_(again), deadline_(now + kMaxConnectTime) {
    const std::chrono::milliseconds timeout(timeout_ms);
    if (timeout_ms != 0) deadline_ = now + std::clamp<Clock::duration>(timeout / 4, kMinConnectTime, kMaxConnectTime);
  }
  Clock::time_point deadline() const { return deadline_; }

  struct Next {
    std::optional<Clock::duration> pause;  // until the next attempt; nothing: there is none
    Status failure;
    bool at_own_limit = false;  // this process can open no connection
  };
  // No address of the other process led to it. `gone`: all refused.
  Next not_reached(const Status& status, bool gone) {
    const bool at_limit = status.code() == trSystemError;
    // Where no address ever answered otherwise, further attempts are of no use; but a firewall may refuse for a moment.
    const bool refused = gone && !again_;
    if ((at_limit || refused) && left_ > kRefusals) return try_again();
    return {{}, refused ? Status(trSystemError, status.message()) : status, at_limit};
  }
  // The connection stood, and ended before the other rank had answered.
  Next dropped(const std::string& reason) {
    if (left_ > 1) return try_again();
    return {{}, {trRemoteError, reason}};
  }

 private:
  Next try_again() { return {kConnectPause * (1 << (kMaxConnectAttempts - left_--)), {}}; }

  const bool again_;
  Clock::time_point deadline_;
  uint32_t left_ = kMaxConnectAttempts;
};

}  // namespace treering
