// RankGroup: how the ranks of one run meet, apart from the library under test.
//
// One block of anonymous shared memory, mapped before the processes are forked, holds a barrier, one slot for
// each rank and what the ranks tell one another. Nothing is left behind: it goes with the last process.
//
//   launcher -- fork --> process 0: ranks 0 .. t-1    |
//            -- fork --> process 1: ranks t .. 2t-1   |  all map the same SharedState
//
// Invariant: every rank passes the same barriers in the same order. A rank that dies leaves the others
// waiting; the launcher, which sees it die, ends them.
#pragma once

#include <treering/treering.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "options.h"

namespace treering::perf {

struct RankPlace {
  int32_t pid = 0;
  int32_t core = -1;  // -1: not pinned
};

struct SharedState {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<int32_t> exit_status;  // of the run, set by rank 0
  trUniqueId id;
  // Atomic although barriers order them: a race detector cannot see what the other processes do at a barrier.
  std::atomic<double> values[kMaxRanks];
  RankPlace places[kMaxRanks];
  // Rank r's time of iteration i is at r * samples_per_rank + i; empty without -I.
  uint64_t samples_per_rank;
  double samples[1];
};

// Zeroed; nullptr when there is no memory.
SharedState* create_shared_state(int ranks, uint64_t samples_per_rank);

class RankGroup {
 public:
  RankGroup(SharedState* shared, int rank, int ranks);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  SharedState& shared() { return *shared_; }

  void barrier();
  // What every rank gave, in the order of the ranks; the same on all.
  std::vector<double> gather(double value);
  // For each iteration the longest time over the ranks; every rank has written its samples.
  std::vector<double> slowest_samples();
  double* own_samples() { return shared_->samples + static_cast<uint64_t>(rank_) * shared_->samples_per_rank; }

 private:
  SharedState* shared_;
  int rank_;
  int ranks_;
};

}  // namespace treering::perf
