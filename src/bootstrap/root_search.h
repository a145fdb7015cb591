// SPDX-License-Identifier: Apache-2.0
// RootSearch: how long a process that joins tries to reach the rendezvous root, and why it gives up. No I/O, no clock.
#pragma once

#include <algorithm>
#include <optional>

#include "bootstrap/dial.h"
#include "bootstrap/unique_id.h"
#include "core/clock.h"

namespace treering {

class RootSearch {
 public:
  // Between two attempts, and some chance.
  static constexpr auto kRetry = std::chrono::milliseconds(50);
  static constexpr auto kNearTimeout = std::chrono::seconds(1);    // with one of this machine that does not answer
  static constexpr auto kGoneTimeout = std::chrono::seconds(5);    // with one on another that refuses connections
  static constexpr auto kAnswerTimeout = std::chrono::seconds(5);  // of one that was reached, to this process's arrival
  static constexpr auto kTold = std::chrono::seconds(10);          // that it is not reached, and again in each of these

  // `network`: the network namespace of this process.
  RootSearch(const UniqueId& id, uint64_t network, Clock::time_point began, Clock::time_point deadline)
      : root_pid_(id.root_pid),
        near_(network == id.root_network && id.root_pid != 0),
        began_(began),
        told_(began),
        deadline_(deadline) {}
  // How long an attempt may take: the kernel alone asks a network that is away less and less often.
  Clock::time_point attempt_until(Clock::time_point now) const { return std::min(deadline_, now + kTold); }

  // An attempt has failed. The failure of the search; nothing: it goes on, as it does until the deadline where the network
  // leads nowhere, which may be an outage.
  std::optional<Status> failed(const Status& status, DialEnd end, Clock::time_point now) const;
  // What to warn of while it goes on; empty: nothing.
  std::string news(const Status& status, Clock::time_point now);
  // This process was the root itself, whose ranks have met, or failed to.
  static Status ended_here(bool have_met);

 private:
  // One that was agreed on before its process started: it may yet come.
  bool is_awaited() const { return root_pid_ == 0; }

  uint32_t root_pid_;
  bool near_;  // on this machine
  std::string who() const;

  Clock::time_point began_, told_, deadline_;
};

}  // namespace treering
