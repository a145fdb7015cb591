// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory/occupancy_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "core/log.h"

namespace treering {
namespace {

// Communicators that fit a shared GPU at the same time.
constexpr uint32_t kCommunicators = 4;

struct Count {
  uint32_t communicators = 0, blocks = 0;
};
std::mutex& counts_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::map<const Device*, Count>& counts() {
  static auto* map = new std::map<const Device*, Count>;
  return *map;
}

}  // namespace

uint32_t OccupancyBudget::most_channels(uint32_t multiprocessors, uint32_t ranks) {
  return ranks == 1 ? multiprocessors : std::max(multiprocessors / kCommunicators / ranks, 1u);
}

OccupancyBudget::OccupancyBudget(const Device* device, uint32_t ranks, uint32_t channels)
    : device_(device), blocks_(ranks * channels) {
  Count all;
  {
    std::lock_guard lock(counts_mutex());
    Count& count = counts()[device];
    ++count.communicators;
    count.blocks += blocks_;
    all = count;
  }
  const DeviceInfo& info = device->info();
  if (ranks == 1 || all.blocks <= info.multiprocessors) return;
  log_line(
      LogLevel::kWarn,
      fmt::format("GPU {} is shared by {} ranks of a new communicator, with {} block(s) each; the kernels of {} "
                  "communicator(s) of this process now have {} blocks there together, on {} multiprocessors. Those "
                  "that run at the same time could wait for one another for ever: let fewer do so, or give "
                  "communicators fewer blocks (TREERING_DEVICE_BLOCKS)",
                  info.ordinal, ranks, channels, all.communicators, all.blocks, info.multiprocessors));
}

OccupancyBudget::~OccupancyBudget() {
  std::lock_guard lock(counts_mutex());
  Count& count = counts()[device_];
  --count.communicators;
  count.blocks -= blocks_;
}

}  // namespace treering
