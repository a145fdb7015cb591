// SPDX-License-Identifier: Apache-2.0
// Plans and schedules for the tests of src/algorithms.
#pragma once

#include <numeric>
#include <random>
#include <vector>

#include "algorithms/algorithm.h"

namespace treering {

inline Plan make_plan(uint32_t ranks, uint64_t shuffle_seed = 0) {
  Plan plan;
  plan.ranks = ranks;
  plan.ring.resize(ranks);
  std::iota(plan.ring.begin(), plan.ring.end(), 0);
  if (shuffle_seed != 0) {
    std::mt19937_64 random(shuffle_seed);
    std::shuffle(plan.ring.begin(), plan.ring.end(), random);
  }
  return plan;
}

// Hosts of these numbers of ranks; which rank is on which host is shuffled, the ring goes from host to host.
inline Plan make_host_plan(const std::vector<uint32_t>& sizes, uint64_t shuffle_seed) {
  const uint32_t ranks = std::accumulate(sizes.begin(), sizes.end(), 0u);
  Plan plan = make_plan(ranks, shuffle_seed);
  plan.host.resize(ranks);
  uint32_t position = 0;
  for (uint32_t host = 0; host < sizes.size(); ++host) {
    plan.leaders.push_back(plan.ring[position]);
    for (uint32_t i = 0; i < sizes[host]; ++i) plan.host[plan.ring[position++]] = host;
  }
  return plan;
}

inline std::vector<Schedule> build_all(const Algorithm& algorithm, const Plan& plan, const Shape& shape = {}) {
  std::vector<Schedule> schedules;
  for (uint32_t rank = 0; rank < plan.ranks; ++rank) schedules.push_back(algorithm.build(plan, rank, shape));
  return schedules;
}

}  // namespace treering
