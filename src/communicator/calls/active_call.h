// SPDX-License-Identifier: Apache-2.0
// ActiveCall: the call that a rank is in, from the operation to its end: its number and signature, what the executor is
// to do, what the other ranks are shown of it, and which of three ways it takes.
//
//   begin(operation) --> mailbox      a tiny message to each rank, all of which share memory
//                    --> eager path   a small message to each peer
//                    --> execution    a schedule, or lanes
//   advance()  until it is done, or fails: then it says because of whom and why
#pragma once

#include <array>
#include <memory>

#include "communicator/calls/call_regions.h"
#include "communicator/calls/operation.h"
#include "communicator/calls/schedule_cache.h"
#include "executor/eager.h"
#include "executor/execution.h"
#include "executor/mailbox.h"
#include "failure/watch.h"

namespace treering {

// Largest blocks that take the eager path; 0: none do.
struct EagerSizes {
  size_t mapped = 0;   // where all peers are mapped
  size_t regions = 0;  // ... and this process has memory that they can read in place
  size_t linked = 0;   // where not all are; of sends and receives, too
};

class ActiveCall {
 public:
  // Context and watch outlive it.
  ActiveCall(ExecutorContext* context, Watch* watch, Mailbox mailbox, CallRegions regions);
  // Before the first call.
  void set_schedules(ScheduleCache* schedules, const EagerSizes& sizes);

  // The operation has been checked, and outlives its end. `constraints`: see CallSelection.
  void begin(const Operation& operation, uint32_t constraints);
  Progress advance() {
    switch (way_) {
      case Way::kMailbox:
        return mailbox_.advance(call_);
      case Way::kEager:
        return eager_path_.advance();
      case Way::kExecution:
        break;
    }
    return execution_.advance();
  }

  // 0: sends and receives, which are not counted.
  uint64_t number() const { return call_.operation; }
  // How many were counted.
  uint64_t operations() const { return operations_; }
  // Whom it waits for (this rank: no peer in particular), or because of whom it has failed.
  uint32_t peer() const;
  uint64_t steps() const { return execution_.steps(); }
  // kFailed: of the link to the peer.
  const Status& status() const { return way_ == Way::kEager ? eager_path_.status() : execution_.status(); }
  // kDiffers: of a transfer whose ends differ.
  const std::optional<TransferSizes>& differing_sizes() const;

  // For metrics and traces: bytes of the larger buffer as they travel. Not of pairs: pair_bytes(), of what is sent and
  // received.
  size_t bytes() const { return bytes_; }
  size_t pair_bytes(const Operation& operation) const;
  const char* algorithm() const;
  bool is_by_mailbox() const { return way_ == Way::kMailbox; }

  bool has_mailbox() const { return mailbox_.ranks() > 0; }
  // The largest transfers that need no lanes.
  size_t most_eager_transfer() const { return std::max(most_eager_bytes(), eager_sizes_.linked); }

 private:
  enum class Way : uint8_t { kExecution, kEager, kMailbox };

  void number_call(const Operation& operation);
  size_t element_bytes(const Operation& operation) const;
  Way way_of(const Operation& operation, const Choice* choice) const;
  void fill(const Operation& operation, uint32_t constraints);
  void add_residual(const Operation& operation);
  void show(const Operation& operation, const Program* program);
  void start_mailbox(const Operation& operation, uint32_t constraints);
  void start_eager(const Operation& operation);
  size_t most_eager_bytes() const {
    return RegionTable::instance().empty() ? eager_sizes_.mapped : eager_sizes_.regions;
  }

  ExecutorContext* context_;
  Watch* watch_;
  ScheduleCache* schedules_ = nullptr;
  EagerSizes eager_sizes_;
  CallRegions regions_;
  Mailbox mailbox_;
  EagerPath eager_path_;
  Execution execution_;
  Call call_;
  alignas(16) std::array<std::byte, 16> scale_{};  // of the call, where it lay in memory of the user
  Way way_ = Way::kExecution;
  const Choice* choice_ = nullptr;  // none: pairs
  size_t bytes_ = 0;
  uint64_t operations_ = 0;
  uint64_t history_ = 0;  // hash of all operations that were counted
};

}  // namespace treering
