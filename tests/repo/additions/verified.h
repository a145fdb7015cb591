// SPDX-License-Identifier: Apache-2.0
// Whether an algorithm is found by its name, and verified for several numbers of ranks.
#pragma once

#include <cstdio>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/verify.h"

namespace treering {

inline bool is_verified(Collective collective, const char* name) {
  const Algorithm* algorithm = nullptr;
  if (Status found = find_algorithm(collective, name, &algorithm); !found.ok())
    return std::fprintf(stderr, "%s\n", found.message().c_str()), false;
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 5u, 8u, 13u, 64u}) {
    const Plan plan = flat_plan(ranks);
    std::vector<Schedule> schedules;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Status fits = check_build(*algorithm, plan, rank, {});
      if (fits.ok()) fits = check_structure(schedules.emplace_back(algorithm->build(plan, rank, {})));
      if (!fits.ok()) return std::fprintf(stderr, "%u ranks: %s\n", ranks, fits.message().c_str()), false;
    }
    const VerifyReport report = verify(schedules, {.collective = collective, .exact = true});
    if (!report.ok() || (algorithm->rank_ordered && !report.rank_ordered))
      return std::fprintf(stderr, "%u ranks: %s\n", ranks, report.ok() ? "not in order" : report.error.c_str()), false;
  }
  return true;
}

}  // namespace treering
