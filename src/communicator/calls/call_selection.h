// SPDX-License-Identifier: Apache-2.0
// CallSelection: which schedule a call takes under the settings of its communicator, and why.
#pragma once

#include <memory>
#include <string>

#include "communicator/calls/operation.h"
#include "communicator/calls/schedule_cache.h"
#include "core/config.h"

namespace treering {

// A call with nothing special about it, of buffers of `bytes`.
struct SelectionQuery {
  Collective collective;
  size_t bytes;  // that travel
  uint32_t constraints;
  bool compressed() const { return (constraints & kComputedOnce) != 0; }
};

class CallSelection {
 public:
  // `schedules` outlives it.
  CallSelection(const Config& config, uint32_t ranks, ScheduleCache* schedules);

  // Adds the compression that the settings ask for.
  void apply_settings(Operation* operation) const {
    if (wire_ != nullptr && may_be_compressed(*operation)) operation->compression = wire_;
  }
  uint32_t constraints_of(const Operation& operation) const {
    uint32_t constraints = 0;
    if (operation.blocks != nullptr) constraints |= kUnequalParts;
    const bool ordered = operation.reduction != nullptr && !operation.reduction->commutative;
    if (ordered || (deterministic_ && info_of(operation.collective).reduces)) constraints |= kRankOrdered;
    if (operation.compression != nullptr) constraints |= kComputedOnce;
    return constraints;
  }
  SelectionQuery query(Collective collective, size_t bytes, trDataType_t type) const;
  const Choice& choose(const SelectionQuery& query) const {
    return schedules_->choose(query.collective, query.bytes, query.constraints);
  }
  // `transports`: between the ranks, in words.
  Status explain(const SelectionQuery& query, const std::string& transports, std::string* text) const;

 private:
  static bool may_be_compressed(const Operation& operation);

  ScheduleCache* schedules_;
  uint32_t ranks_;
  bool deterministic_;
  std::shared_ptr<Compression> wire_;  // of all float32 sums; or nullptr
};

}  // namespace treering
