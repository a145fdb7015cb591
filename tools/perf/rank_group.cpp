// SPDX-License-Identifier: Apache-2.0
#include "rank_group.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>

#include "once.h"

namespace treering::perf {

SharedState* create_shared_state(int ranks, uint64_t samples_per_rank) {
  const size_t bytes = sizeof(SharedState) + static_cast<size_t>(ranks) * samples_per_rank * sizeof(double);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* shared = new (memory) SharedState;
  shared->arrived = 0;
  shared->generation = 0;
  shared->exit_status = 0;
  shared->telling = shared->told = 0;
  shared->samples_per_rank = samples_per_rank;
  return shared;
}

RankPlace place_here(int core) {
  RankPlace place;
  place.pid = static_cast<int32_t>(getpid());
  place.core = core;
  gethostname(place.host, sizeof(place.host) - 1);
  return place;
}

// A rank that says nothing waits for the one that does: its process may end with it.
void SharedGroup::tell(const std::string& error) {
  constexpr int kMaxTurns = 1000;
  const uint64_t hash = std::hash<std::string>()(error);
  if (shared_->telling.exchange(hash) != hash) {
    fprintf(stderr, "error: rank %d: %s\n", rank_, error.c_str());
    shared_->told = hash;
    shared_->has_told[rank_] = true;
    return;
  }
  const timespec pause{0, 1'000'000};
  for (int turn = 0; turn < kMaxTurns && shared_->told != hash; ++turn) nanosleep(&pause, nullptr);
  shared_->has_told[rank_] = shared_->told == hash;
}

// Rank 0's process is the one that listens for the others.
trResult_t SharedGroup::create(const trConfig_t& config, trComm_t* comm) {
  trResult_t made = trSuccess;
  if (rank_ == 0) made = trGetUniqueId(&shared_->id);
  if (made != trSuccess) return made;
  barrier();
  const trUniqueId id = shared_->id;
  return trCommInitRankConfig(comm, ranks_, id, rank_, &config);
}

void SharedGroup::barrier() {
  const uint32_t generation = shared_->generation.load(std::memory_order_acquire);
  if (shared_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(ranks_)) {
    shared_->arrived.store(0, std::memory_order_relaxed);
    shared_->generation.store(generation + 1, std::memory_order_release);
    return;
  }
  // Spins for as long as the others may be a moment late, then gives the core away, then sleeps.
  for (uint32_t turn = 0; shared_->generation.load(std::memory_order_acquire) == generation; ++turn) {
    if (turn > 20000) {
      const timespec pause{0, 50000};
      nanosleep(&pause, nullptr);
    } else if (turn > 2000) {
      sched_yield();
    }
  }
  // The one that opened the barrier may be another process, whose steps a race detector cannot see: it knows by this
  // load that the other ranks of this process came before.
  (void)shared_->arrived.load(std::memory_order_acquire);
}

std::vector<double> SharedGroup::gather(double value) {
  shared_->values[rank_].store(value, std::memory_order_relaxed);
  barrier();
  std::vector<double> all;
  for (int rank = 0; rank < ranks_; ++rank) all.push_back(shared_->values[rank].load(std::memory_order_relaxed));
  barrier();
  return all;
}

std::vector<RankPlace> SharedGroup::gather_places(const RankPlace& own) {
  shared_->places[rank_] = own;
  barrier();
  return {shared_->places, shared_->places + ranks_};
}

std::vector<double> SharedGroup::slowest_samples() {
  const uint64_t count = shared_->samples_per_rank;
  std::vector<double> slowest(count, 0.0);
  for (int rank = 0; rank < ranks_; ++rank) {
    const double* samples = shared_->samples + static_cast<uint64_t>(rank) * count;
    for (uint64_t i = 0; i < count; ++i) slowest[i] = std::max(slowest[i], samples[i]);
  }
  return slowest;
}

LaunchedGroup::~LaunchedGroup() {
  if (!given_away_) trCommDestroy(comm_);
}

trResult_t LaunchedGroup::create(const trConfig_t& config, trComm_t* comm) {
  if (config.device == TR_CONFIG_UNDEF_INT) {
    given_away_ = true;
    *comm = comm_;
    return trSuccess;
  }
  trUniqueId id = {};
  if (rank_ == 0) expect(trGetUniqueId(&id), "trGetUniqueId");
  expect(trBroadcast(&id, &id, sizeof id, trUint8, 0, comm_, nullptr), "trBroadcast");
  return trCommInitRankConfig(comm, ranks_, id, rank_, &config);
}

void LaunchedGroup::tell(const std::string& error) { print_error_once("rank " + std::to_string(rank_) + ": ", error); }

void LaunchedGroup::expect(trResult_t result, const char* call) {
  if (result == trSuccess) return;
  tell(std::string(call) + ": " + trGetErrorString(result) + ": " + trGetLastError(comm_));
  fflush(nullptr);
  _exit(1);
}

void LaunchedGroup::barrier() { expect(trBarrier(comm_, nullptr), "trBarrier"); }

std::vector<double> LaunchedGroup::gather(double value) {
  std::vector<double> all(static_cast<size_t>(ranks_));
  expect(trAllGather(&value, all.data(), 1, trFloat64, comm_, nullptr), "trAllGather");
  return all;
}

std::vector<RankPlace> LaunchedGroup::gather_places(const RankPlace& own) {
  std::vector<RankPlace> all(static_cast<size_t>(ranks_));
  expect(trAllGather(&own, all.data(), sizeof own, trUint8, comm_, nullptr), "trAllGather");
  return all;
}

std::vector<double> LaunchedGroup::slowest_samples() {
  std::vector<double> slowest(samples_.size());
  expect(trAllReduce(samples_.data(), slowest.data(), samples_.size(), trFloat64, trMax, comm_, nullptr),
         "trAllReduce");
  return slowest;
}

}  // namespace treering::perf
