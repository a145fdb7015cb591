// SPDX-License-Identifier: Apache-2.0
// Lanes: the schedules of single transfers between two ranks, for sends and receives and for collectives of which each
// pair of ranks knows its own counts alone (alltoallv, gatherv, scatterv, box exchange).
//
//   send lane     input  --one chunk a message-->  receive lane     output
//
// A lane is the whole program of one direction of one pair, so lanes cannot block one another.
#pragma once

#include "algorithms/schedule.h"

namespace treering {

Schedule send_schedule(uint32_t ranks, uint32_t rank, uint32_t peer);
Schedule receive_schedule(uint32_t ranks, uint32_t rank, uint32_t peer);
Schedule copy_schedule(uint32_t ranks, uint32_t rank);

}  // namespace treering
