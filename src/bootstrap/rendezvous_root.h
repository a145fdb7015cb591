// SPDX-License-Identifier: Apache-2.0
// RendezvousRoot: what the process that made the unique id decides about the rendezvous: places in the tree, whether
// the ranks agree, when all are here, who is missing. No I/O, no clock.
//
//   hosts' first processes      0 -- 1, 2, 3, 4;  1 -- 5 ...      each process has at most kFanOut children of either
//   processes of one host       the same, below its first         kind, and a parent that arrived before it
#pragma once

#include <map>
#include <set>

#include "bootstrap/frames.h"
#include "core/clock.h"

namespace treering {

class RendezvousRoot {
 public:
  static constexpr uint32_t kFanOut = 4;

  // `names`: how users know the ranks, in their order; empty: by their numbers.
  RendezvousRoot(const Place& own, const std::string& host, std::vector<std::string> names = {});

  // The same process gets the same place again.
  PlacedMessage place(const JoinMessage& join);
  // *complete: it was the last one.
  Status hello(const HelloMessage& hello, Clock::time_point now, bool* complete);
  ProcessTableMessage process_table() const;
  // The failure when that process ends, or a rank of it gives up; ok when none of its ranks has arrived.
  Status lost_process(uint32_t process) const;
  Status lost_rank(uint32_t rank) const;
  using Parts = std::map<uint32_t, std::string>;  // of an exchange, by rank
  // "rank 2, rank 3 of 4 ranks": who has not arrived, or is not among those that `answered` (when not nullptr).
  // `silent`: processes that do not answer.
  std::string missing(const Parts* answered, const std::set<uint32_t>& silent) const;
  Status deadline_passed(const Parts* answered, const std::set<uint32_t>& silent) const;
  // A warning that names those that have not arrived, and says how long the first rank has waited.
  std::string still_waiting(Clock::time_point now) const;

  uint32_t ranks() const { return ranks_; }
  bool has_all() const { return hellos_.size() == ranks_; }
  Clock::time_point deadline() const { return deadline_; }
  int timeout_ms() const { return timeout_ms_; }

 private:
  Status gave_up(const HelloMessage& hello) const;
  std::string name_of(uint32_t rank) const;

  std::vector<Place> places_;
  std::map<uint64_t, uint32_t> process_of_;  // by Place::local
  std::map<std::string, uint32_t> host_numbers_;
  std::vector<std::vector<uint32_t>> hosts_;  // processes of each
  std::map<uint32_t, HelloMessage> hellos_;   // by rank
  const std::vector<std::string> names_;
  uint32_t ranks_ = 0;
  uint32_t first_rank_ = 0;
  Clock::time_point first_hello_;
  std::string settings_;
  int timeout_ms_ = 0;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace treering
