#include "topology/plan.h"

#include <numeric>

namespace treering {

Plan flat_plan(uint32_t ranks) {
  Plan plan;
  plan.ranks = ranks;
  plan.ring.resize(ranks);
  std::iota(plan.ring.begin(), plan.ring.end(), 0u);
  plan.host.assign(ranks, 0);
  plan.numa_node.assign(ranks, 0);
  plan.leaders = {0};
  return plan;
}

}  // namespace treering
