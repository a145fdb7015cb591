#include "communicator/measure.h"

#include <unistd.h>

#include <chrono>
#include <vector>

#include "communicator/backoff.h"
#include "executor/reduce.h"

namespace treering {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kBytes = 256 << 10;  // in the second-level cache together with its copy
constexpr int kRepeats = 5;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Best of a few: what disturbs a measurement only ever makes it slower.
template <typename Work>
double best_seconds(Work work) {
  double best = 1;
  for (int i = 0; i < kRepeats; ++i) {
    auto begin = Clock::now();
    work();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

}  // namespace

Machine measure_core() {
  Machine machine;
  std::vector<float> a(kBytes / sizeof(float), 1.0f), b(a), c(a);
  double copy_s = best_seconds([&] { copy(b.data(), a.data(), kBytes, false); });
  const void* sources[] = {a.data(), b.data()};
  void* destinations[] = {c.data()};
  ReduceCall call;
  call.sources = sources;
  call.source_count = 2;
  call.destinations = destinations;
  call.destination_count = 1;
  call.count = a.size();
  double reduce_s = best_seconds([&] { reduce(call); });
  machine.copy_gbps_cached = static_cast<double>(kBytes) / copy_s / 1e9;
  machine.reduce_gbps = 2.0 * static_cast<double>(kBytes) / reduce_s / 1e9;
  long llc = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (llc <= 0) llc = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (llc > 0) machine.llc_bytes = static_cast<uint64_t>(llc);
  return machine;
}

double measure_alpha_us(bool first, const AreaView& rank0, const AreaView& rank1) {
  // The first FIFO line of each area is not in use yet; it is left as it was found.
  constexpr int kRounds = 200;
  auto& own = (first ? rank0 : rank1).nonce()[first ? 1 : 1];
  auto& other = (first ? rank1 : rank0).nonce()[1];
  std::atomic_ref<uint64_t> mine(own), theirs(other);
  auto begin = Clock::now();
  auto limit = begin + std::chrono::milliseconds(20);
  auto wait_for = [&](uint64_t value) {
    for (int polls = 1; mine.load(std::memory_order_acquire) < value; ++polls) {
      if (polls < 2000) { cpu_relax(); continue; }
      sched_yield();
      if (Clock::now() > limit) return false;
    }
    return true;
  };
  Clock::time_point started = begin;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    if (first) theirs.store(round, std::memory_order_release);
    if (!wait_for(round)) return Machine().alpha_us;
    if (!first) theirs.store(round, std::memory_order_release);
    if (round == kRounds / 2) started = Clock::now();
  }
  return seconds_since(started) * 1e6 / (kRounds / 2) / 2;
}

}  // namespace treering
