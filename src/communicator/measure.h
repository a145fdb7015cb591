// What the cost model needs to know of the machine, measured in a few milliseconds while a communicator is created.
#pragma once

#include "algorithms/cost.h"
#include "communicator/area.h"

namespace treering {

// Rates of this core: copy and reduction of data in cache, and the last-level cache's size.
Machine measure_core();

// Time of one cache line from rank 0 to rank 1 and back, halved: both call it at the same time on rank 0's and rank
// 1's area. Returns the default when the partner does not answer within some milliseconds.
double measure_alpha_us(bool first, const AreaView& rank0, const AreaView& rank1);

}  // namespace treering
