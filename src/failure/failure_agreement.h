// SPDX-License-Identifier: Apache-2.0
// FailureAgreement: how the first failure of a communicator becomes every rank's, in the same words.
//
//   propose() -- all ranks share the record ------------------------------> decided
//        '------ else, to the top of the control tree ---> take() --------> decided, the same on every rank
//                                   nothing comes back by the limit ------> decided here, by this rank's proposal
//
// No wait of a rank waits here: a proposal is made once and decided by poll(), which every such wait calls. So one
// communicator's failure holds up nothing else that its thread moves. settle() is for a user who asks.
//
// Invariants: the first proposal of a rank stays; what is decided stays. Any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "executor/rank_status.h"

namespace treering {

// Another rank may be writing the record at this moment. One that has ended meanwhile never finishes it.
inline constexpr auto kWriterTimeout = std::chrono::milliseconds(500);

class FailureAgreement {
 public:
  // Gives a proposal to the other processes; empty where the ranks share the record.
  using Broadcast = std::function<void(uint32_t code, const std::string& text)>;

  // `shared`: the record that the ranks of this host share, or this rank's own; `own`: that in this rank's status.
  FailureAgreement(FailureRecord* shared, FailureRecord* own, std::string communicator_name, Broadcast broadcast);

  // "communicator 'a': ", where it has a name.
  std::string prefix() const;
  // The failure that holds, or ok.
  Status decided() const;
  // Whether this rank has proposed one.
  bool proposed() const { return proposed_.load(std::memory_order_acquire); }
  // At `limit` the proposal holds for this rank, whatever the others know.
  void propose(const Status& status, Clock::time_point limit);
  // decided(), of a proposal whose limit has passed as well.
  Status poll(Clock::time_point now);
  // The same, and what another rank of the host is writing at this moment: it is waited for until `patience` is over, as
  // it may have ended while it wrote.
  Status settle(Clock::duration patience);
  // decided(), or this rank's proposal, or ok.
  Status known() const;
  // What another process made known; `text` has the communicator's name already.
  void take(trResult_t code, const std::string& text);

 private:
  void show(const Status& status);

  FailureRecord *shared_, *own_;
  std::string name_;
  Broadcast broadcast_;
  std::atomic<bool> proposed_{false};
  mutable std::mutex mutex_;  // of the rest
  Status proposal_;
  Clock::time_point limit_;
};

}  // namespace treering
