// SPDX-License-Identifier: Apache-2.0
// CallComparison: whether ranks make the same calls, by what each shows of its last ones, and in words how they differ.
// Decides nothing else: what it returns is proposed by Watch.
#pragma once

#include <cstdint>
#include <optional>

#include "core/status.h"
#include "executor/execution.h"
#include "failure/call_text.h"
#include "failure/peer_states.h"

namespace treering {

class CallComparison {
 public:
  // What is given outlives it. `status`: this rank's.
  CallComparison(const RankStatus* status, const PeerStates* peers, const OwnCall* call)
      : status_(status), peers_(peers), call_(call) {}

  // Ok, or how the calls of this rank and `peer` differ, where its status can be read in place.
  Status check_mapped(uint32_t peer) const;
  // The first operation that this rank and another called differently, of those that both keep.
  std::optional<uint64_t> first_difference(const RankStatusSnapshot& other) const;

  // Errors: the calls differ, as a difference that was found or a header that came shows. `sizes`: of a transfer.
  Status calls_differ(uint32_t peer, const RankStatusSnapshot& other) const;
  Status transfers_differ(uint32_t peer, const TransferSizes& sizes) const;
  Status meets_send(uint32_t peer, uint64_t bytes) const;
  // `peer` called something else; `shown`: what it has shown since, if it answered.
  Status called_something_else(uint32_t peer, const RankStatusSnapshot* shown) const;

 private:
  const RankStatus* status_;
  const PeerStates* peers_;
  const OwnCall* call_;
};

}  // namespace treering
