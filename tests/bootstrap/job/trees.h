// SPDX-License-Identifier: Apache-2.0
// Trees of processes, for tests of what a job decides.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bootstrap/job/process_tree.h"
#include "core/clock.h"

namespace treering::testing {

constexpr Clock::time_point kNow = Clock::time_point() + std::chrono::seconds(100);

// `parents`: of each process; `process_of_rank`: by default process p holds rank p. Process p has pid 1000 + p, and all
// run on host 0, "a".
inline ProcessTableMessage process_table_of(const std::vector<uint32_t>& parents,
                                            std::vector<uint32_t> process_of_rank = {}) {
  ProcessTableMessage table;
  for (uint32_t process = 0; process < parents.size(); ++process) {
    Place place;
    place.process = process;
    place.parent = parents[process];
    place.pid = 1000 + process;
    place.host_name = "a";
    table.places.push_back(place);
  }
  if (process_of_rank.empty())
    for (uint32_t process = 0; process < parents.size(); ++process) process_of_rank.push_back(process);
  table.process_of_rank = std::move(process_of_rank);
  return table;
}

// The tree as process `own` sees it when all have met: connected to its parent and its children.
inline ProcessTree tree_at(uint32_t own, const std::vector<uint32_t>& parents,
                           std::vector<uint32_t> process_of_rank = {}) {
  ProcessTree tree;
  tree.set_own(own);
  if (parents[own] == kNobody)
    tree.become_top();
  else
    tree.attach_to(parents[own]);
  for (uint32_t process = 0; process < parents.size(); ++process)
    if (parents[process] == own) tree.add_child(process);
  tree.meet(process_table_of(parents, std::move(process_of_rank)));
  return tree;
}

}  // namespace treering::testing
