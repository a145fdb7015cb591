// SPDX-License-Identifier: Apache-2.0
// Calls as error texts and log lines say them.
#pragma once

#include <string>

#include "executor/execution.h"
#include "executor/rank_status.h"

namespace treering {

// "allreduce of 1024 x float, sum", "trCommSplit or trCommDup".
std::string text_of(const CallCopy& call);

// Whether a rank that waits does so in a send or receive: outside of operations it waits nowhere else.
bool in_transfer(const RankStatusSnapshot& shown);

// Where a rank is: "operation 7 (barrier)".
std::string place_of(const RankStatusSnapshot& shown);

// The call that this rank is in.
class OwnCall {
 public:
  // `status`: this rank's, which has what the call is. It outlives this.
  explicit OwnCall(const RankStatus* status) : status_(status) {}
  void start(const Call* call) { call_ = call; }

  bool is_creation() const { return call_ == nullptr; }  // there was no call yet
  // Not sends and receives, which have no number.
  bool is_counted() const { return call_ == nullptr || call_->operation != 0; }
  // The operation's; there is none in the creation.
  uint64_t number() const { return call_->operation; }
  std::string text() const;
  // "operation 7 (barrier)", "the creation of the communicator".
  std::string place() const;

 private:
  const RankStatus* status_;
  const Call* call_ = nullptr;
};

}  // namespace treering
