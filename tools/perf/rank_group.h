// SPDX-License-Identifier: Apache-2.0
// RankGroup: how the ranks of one run meet and tell one another what they measured.
//
// SharedGroup, for processes that this program forks, is apart from the library under test: one block of anonymous
// shared memory, mapped before the fork, holds a barrier, one slot for each rank and what the ranks tell one another.
// Nothing is left behind: it goes with the last process.
//
//   launcher -- fork --> process 0: ranks 0 .. t-1    |
//            -- fork --> process 1: ranks t .. 2t-1   |  all map the same SharedState
//
// LaunchedGroup, for processes that mpirun, srun or --hosts has started, perhaps on several hosts, uses a communicator:
// that under test, or with GPUs, which must not run what the ranks tell one another, one of its own.
//
// Invariant: every rank passes the same barriers in the same order. A rank that dies leaves the others
// waiting; the launcher, which sees it die, ends them.
#pragma once

#include <treering/treering.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "options.h"

namespace treering::perf {

struct RankPlace {
  int32_t pid = 0;
  int32_t core = -1;  // -1: not pinned
  char host[64] = {};
  int32_t gpu = -1;  // its number on that host; -1: buffers on the host
  char gpu_name[64] = {};
  char gpu_bus[20] = {};
};
// The place of the calling process.
RankPlace place_here(int core);

struct SharedState {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> generation;
  std::atomic<int32_t> exit_status;       // of the run, set by rank 0
  std::atomic<uint64_t> telling, told;    // hashes of the last error that a rank began to print, and has printed
  std::atomic<bool> has_told[kMaxRanks];  // the rank has printed its error, or another one has in the same words
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
  virtual ~RankGroup() = default;
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Creates this rank's communicator.
  virtual trResult_t create(const trConfig_t& config, trComm_t* comm) = 0;
  virtual void barrier() = 0;
  // What every rank gave, in the order of the ranks; the same on all.
  virtual std::vector<double> gather(double value) = 0;
  virtual std::vector<RankPlace> gather_places(const RankPlace& own) = 0;
  // For each iteration the longest time over the ranks; every rank has written its samples.
  virtual std::vector<double> slowest_samples() = 0;
  virtual double* own_samples() = 0;
  // The run's exit status, from rank 0.
  virtual void conclude(int status) = 0;
  // Prints an error, but not one in the same words that another rank of this machine prints.
  virtual void tell(const std::string& error) = 0;

 protected:
  RankGroup(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  int rank_;
  int ranks_;
};

class SharedGroup : public RankGroup {
 public:
  SharedGroup(SharedState* shared, int rank, int ranks) : RankGroup(rank, ranks), shared_(shared) {}

  trResult_t create(const trConfig_t& config, trComm_t* comm) override;
  void barrier() override;
  std::vector<double> gather(double value) override;
  std::vector<RankPlace> gather_places(const RankPlace& own) override;
  std::vector<double> slowest_samples() override;
  double* own_samples() override { return shared_->samples + static_cast<uint64_t>(rank_) * shared_->samples_per_rank; }
  void conclude(int status) override { shared_->exit_status = status; }
  void tell(const std::string& error) override;

 private:
  SharedState* shared_;
};

class LaunchedGroup : public RankGroup {
 public:
  // Takes the communicator that trCommInitFromEnvironment() made, without a GPU. create() gives it away, or for a
  // configuration with a GPU makes another.
  LaunchedGroup(trComm_t comm, int rank, int ranks, uint64_t samples_per_rank)
      : RankGroup(rank, ranks), comm_(comm), samples_(samples_per_rank) {}

  ~LaunchedGroup() override;
  trResult_t create(const trConfig_t& config, trComm_t* comm) override;
  void barrier() override;
  std::vector<double> gather(double value) override;
  std::vector<RankPlace> gather_places(const RankPlace& own) override;
  std::vector<double> slowest_samples() override;
  double* own_samples() override { return samples_.data(); }
  void conclude(int status) override { status_ = status; }
  void tell(const std::string& error) override;
  int status() const { return status_; }

 private:
  // Ends the process when a call failed: without the library the ranks cannot meet.
  void expect(trResult_t result, const char* call);

  trComm_t comm_;
  std::vector<double> samples_;
  bool given_away_ = false;
  int status_ = 0;
};

}  // namespace treering::perf
