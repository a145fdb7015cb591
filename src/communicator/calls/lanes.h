// SPDX-License-Identifier: Apache-2.0
// How sends and receives that are to run at once become lanes, one for each peer and direction.
#pragma once

#include <memory>
#include <vector>

#include "communicator/calls/operation.h"
#include "communicator/calls/schedule_cache.h"

namespace treering {

// The lanes of this rank's transfers. Those with itself must match; if not, the error names `function` and the rank.
Status make_lanes(const std::vector<Transfer>& transfers, const char* function, uint32_t rank, ScheduleCache* schedules,
                  std::shared_ptr<LaneSet>* lanes);

// Whether they can go as eager messages of up to `most_bytes`, which need no lanes.
bool are_eager(const std::vector<Transfer>& transfers, size_t most_bytes, uint32_t rank, uint32_t ranks);

}  // namespace treering
