// SPDX-License-Identifier: Apache-2.0
// HostGrid: the ranks of a plan as a grid of hosts and shards, which all algorithms between hosts share.
//
//               shard 0   shard 1   shard 2   shard 3        as many shards as the largest host has ranks, as far as
//                                                             no rank of the smallest gets more than kMaxTurns
//   host 0    |  rank 0 |  rank 1 |  rank 2 |  rank 3 |      row: inside a host every shard has an owner
//   host 1    |  rank 4 |  rank 4 |  rank 5 |  rank 5 |      a smaller host's ranks own several
//   host 2    |  rank 6 |  rank 7 |  rank 8 |  rank 9 |      column: a shard's owners are one group between hosts
//
// Inside the host the ranks give each owner what they have of its shards (reduce-scatter); the owners of a column
// combine; each owner hands the result to its host (allgather). The first and the last go either directly, a message
// from each to each, or around a ring. Both are written so that the owner's receive from its host and its receive from
// the other hosts are one step: data passes through memory once.
//
// Invariant: every two ranks of a host list the messages between them in the same order, because a FIFO has one order.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/builder.h"
#include "topology/plan.h"

namespace treering {

// A step that owns its lists.
struct GridStep {
  unsigned flags = 0;
  uint32_t chunk = 0;
  std::vector<uint32_t> from;
  std::vector<uint32_t> to;
};
using GridSteps = std::vector<GridStep>;

// Appends a block of such steps.
void append_block(ScheduleBuilder* builder, uint32_t count, int32_t chunk_stride, const GridSteps& steps);

inline constexpr uint32_t kMaxTurns = 3;

enum class LocalPhase { kDirect, kRing };

class HostGrid {
 public:
  HostGrid(const Plan& plan, uint32_t rank, LocalPhase local);

  uint32_t hosts() const { return static_cast<uint32_t>(hosts_.size()); }
  uint32_t shards() const { return shards_; }
  // Messages that a FIFO must hold: two ranks may be owners of several common shards.
  uint32_t fifo_depth() const { return 1 + most_turns_; }
  uint32_t host() const { return host_; }  // of this rank
  uint32_t owner(uint32_t host, uint32_t shard) const {
    const auto& members = hosts_[host];
    return members[uint64_t{shard} * members.size() / shards_];
  }
  // Shards are worked on in turns: turn q is about the q-th shard of every owner. The most turns that a rank of this
  // host takes.
  uint32_t turns() const { return turns_; }
  // Whether this rank owns a shard in turn q, and which.
  bool owns(uint32_t turn) const { return has(index_, turn); }
  uint32_t shard(uint32_t turn) const { return shard_of(index_, turn); }

  // The parts of a turn for the chunks first_chunk + shard:
  // what this rank does before the owners combine, but for the last receive, ...
  void scatter(uint32_t turn, uint32_t first_chunk, GridSteps* steps) const;
  // ... the ranks of this host whose messages the owner combines with its own input, ...
  const std::vector<uint32_t>& combined() const { return combined_; }
  // ... the ranks to which the owner's result goes, ...
  const std::vector<uint32_t>& handed() const { return handed_; }
  // ... and the receives of the others' results.
  void gather(uint32_t turn, uint32_t first_chunk, GridSteps* steps) const;

 private:
  uint32_t local_ranks() const { return static_cast<uint32_t>(hosts_[host_].size()); }
  uint32_t first_shard(uint32_t index) const {
    return static_cast<uint32_t>((uint64_t{index} * shards_ + local_ranks() - 1) / local_ranks());
  }
  bool has(uint32_t index, uint32_t turn) const { return shard_of(index, turn) < first_shard(index + 1); }
  uint32_t shard_of(uint32_t index, uint32_t turn) const { return first_shard(index) + turn; }
  // The member `places` before this rank on the host's ring.
  uint32_t before(uint32_t places) const { return (index_ + 2 * local_ranks() - places) % local_ranks(); }

  LocalPhase local_;
  std::vector<std::vector<uint32_t>> hosts_;  // the ranks of each, in the order of the plan's ring
  uint32_t shards_ = 1;
  uint32_t host_ = 0;
  uint32_t index_ = 0;  // of this rank in its host
  uint32_t turns_ = 1;
  uint32_t most_turns_ = 1;  // of all hosts
  std::vector<uint32_t> combined_, handed_;
};

}  // namespace treering
