#include "rank_group.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <new>

namespace treering::perf {

SharedState* create_shared_state(int ranks, uint64_t samples_per_rank) {
  const size_t bytes = sizeof(SharedState) + static_cast<size_t>(ranks) * samples_per_rank * sizeof(double);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* shared = new (memory) SharedState;
  shared->arrived = 0;
  shared->generation = 0;
  shared->exit_status = 0;
  shared->samples_per_rank = samples_per_rank;
  return shared;
}

RankGroup::RankGroup(SharedState* shared, int rank, int ranks) : shared_(shared), rank_(rank), ranks_(ranks) {}

void RankGroup::barrier() {
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
}

std::vector<double> RankGroup::gather(double value) {
  shared_->values[rank_].store(value, std::memory_order_relaxed);
  barrier();
  std::vector<double> all;
  for (int rank = 0; rank < ranks_; ++rank) all.push_back(shared_->values[rank].load(std::memory_order_relaxed));
  barrier();
  return all;
}

std::vector<double> RankGroup::slowest_samples() {
  const uint64_t count = shared_->samples_per_rank;
  std::vector<double> slowest(count, 0.0);
  for (int rank = 0; rank < ranks_; ++rank) {
    const double* samples = shared_->samples + static_cast<uint64_t>(rank) * count;
    for (uint64_t i = 0; i < count; ++i) slowest[i] = std::max(slowest[i], samples[i]);
  }
  return slowest;
}

}  // namespace treering::perf
