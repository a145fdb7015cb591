// SPDX-License-Identifier: Apache-2.0
#include "peers/measure.h"

#include <unistd.h>

#include <chrono>
#include <vector>

#include "core/clock.h"
#include "executor/backoff.h"
#include "executor/reduce/reduce.h"

namespace treering {
namespace {

constexpr size_t kBytes = 256 << 10;  // in the second-level cache together with its copy
constexpr int kRepeats = 5;
constexpr double kMaxAlphaUs = 3;  // a line from another package comes in less than 1 us, another thread's turn later
constexpr double kMaxExchangeGbps = 256;  // a 64-byte line in each cycle of 4 GHz

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

// The two ranks' turns: each waits for its own counter, which the other advances.
class Turns {
 public:
  Turns(bool first, const AreaView& rank0, const AreaView& rank1)
      : mine_((first ? rank0 : rank1).nonce()[1]), theirs_((first ? rank1 : rank0).nonce()[1]) {}

  void give() { theirs_.fetch_add(1, std::memory_order_release); }
  // False when the partner does not answer in time.
  bool take() {
    ++taken_;
    for (int polls = 1; mine_.load(std::memory_order_acquire) < taken_; ++polls) {
      if (polls % 2000 != 0) {
        cpu_relax();
        continue;
      }
      sched_yield();
      if (Clock::now() > limit_) return false;
    }
    return true;
  }

 private:
  std::atomic_ref<uint64_t> mine_, theirs_;
  uint64_t taken_ = 0;
  Clock::time_point limit_ = Clock::now() + std::chrono::milliseconds(30);
};

}  // namespace

size_t last_level_cache_bytes() {
  long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : Machine().llc_bytes;
}

Machine measure_core() {
  Machine machine;
  std::vector<float> a(kBytes / sizeof(float), 1.0f), b(a), c(a);
  const void* sources[] = {a.data(), b.data()};
  void* destinations[] = {c.data()};
  ReduceCall call;
  call.sources = sources;
  call.source_count = 2;
  call.destinations = destinations;
  call.destination_count = 1;
  call.count = a.size();
  double reduce_s = best_seconds([&] { reduce(call); });
  machine.reduce_gbps = 2.0 * static_cast<double>(kBytes) / reduce_s / 1e9;
  machine.llc_bytes = last_level_cache_bytes();
  return machine;
}

void measure_pair(bool first, const AreaView& rank0, const AreaView& rank1, Machine* machine) {
  constexpr int kPings = 200, kTransfers = 12;
  constexpr size_t kTransferBytes = 16 << 10;
  Turns turns(first, rank0, rank1);
  std::vector<std::byte> local(kTransferBytes);
  double best_ping = 1, best_transfer = 1;
  for (int i = 0; i < kPings; ++i) {
    auto begin = Clock::now();
    if (first) turns.give();
    if (!turns.take()) return;
    if (!first) turns.give();
    best_ping = std::min(best_ping, seconds_since(begin));
  }
  // Rank 0 writes its staging memory, rank 1 reads it: the lines go back and forth as in a collective.
  for (int i = 0; i < kTransfers; ++i) {
    auto begin = Clock::now();
    if (first) copy(rank0.staging(), local.data(), kTransferBytes, false);
    if (first) turns.give();
    if (!turns.take()) return;
    if (!first) copy(local.data(), rank0.staging(), kTransferBytes, false);
    if (!first) turns.give();
    best_transfer = std::min(best_transfer, seconds_since(begin));
  }
  if (!first) return;  // only rank 0's measurements are used
  take_pair_times(best_ping, best_transfer, kTransferBytes, machine);
}

void take_pair_times(double ping_s, double transfer_s, size_t bytes, Machine* machine) {
  const double alpha_us = ping_s * 1e6 / 2;
  if (alpha_us > kMaxAlphaUs) return;  // another thread's turn was measured, and with the transfers, too
  machine->alpha_us = alpha_us;
  const double gbps = 2.0 * static_cast<double>(bytes) / (transfer_s - ping_s) / 1e9;
  if (transfer_s > ping_s && gbps <= kMaxExchangeGbps) machine->exchange_gbps = gbps;
}

}  // namespace treering
