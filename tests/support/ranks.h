// SPDX-License-Identifier: Apache-2.0
// All ranks of a communicator in one process, driven by one thread in groups.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "treering/treering.h"

namespace treering::testing {

inline trConfig_t config_with_timeout(int timeout_ms) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = timeout_ms;
  return config;
}

class RankGroup {
 public:
  // Little staging memory makes many slices already at moderate sizes.
  explicit RankGroup(int count, trConfig_t config = default_config()) : comms_(static_cast<size_t>(count)) {
    trUniqueId id;
    EXPECT_EQ(trGetUniqueId(&id), trSuccess);
    EXPECT_EQ(trGroupStart(), trSuccess);
    for (trComm_t& comm : comms_)
      trCommInitRankConfig(&comm, count, id, static_cast<int>(&comm - comms_.data()), &config);
    EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  }
  ~RankGroup() {
    for (trComm_t comm : comms_) EXPECT_TRUE(comm == nullptr || trCommDestroy(comm) == trSuccess);
  }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  static trConfig_t default_config() {
    trConfig_t config = TR_CONFIG_INITIALIZER;
    config.staging_bytes = 65536;
    config.timeout_ms = 60'000;
    return config;
  }

  int count() const { return static_cast<int>(comms_.size()); }
  trComm_t comm(int rank) const { return comms_[static_cast<size_t>(rank)]; }

  // For the caller to end.
  trComm_t take(int rank) { return std::exchange(comms_[static_cast<size_t>(rank)], nullptr); }

  // Calls body(rank, comm) for all ranks in one group.
  void run(const std::function<trResult_t(int, trComm_t)>& body) {
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (int rank = 0; rank < count(); ++rank) EXPECT_EQ(body(rank, comm(rank)), trSuccess) << trGetLastError(nullptr);
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  }

 private:
  std::vector<trComm_t> comms_;
};

// *sum: the number of ranks.
inline trResult_t count_by_sum(trComm_t comm, int* sum) {
  *sum = 1;
  return trAllReduce(sum, sum, 1, trInt32, trSum, comm, nullptr);
}

// n buffers of random values in (-1, 1).
inline std::vector<std::vector<float>> random_buffers(int n, size_t count, uint64_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> real(-1, 1);
  std::vector<std::vector<float>> buffers(static_cast<size_t>(n), std::vector<float>(count));
  for (auto& buffer : buffers)
    for (float& value : buffer) value = real(random);
  return buffers;
}

}  // namespace treering::testing
