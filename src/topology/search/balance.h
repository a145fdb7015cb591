// SPDX-License-Identifier: Apache-2.0
// A few rings or trees of one rate that fill the arcs evenly: each is the cheapest one where an arc costs more the
// fuller it is, and is then chosen again with the others in place. It begins the linear programme and gives the channels
// that a solution is rounded to. Nothing is proved about it; what comes out is measured.
#pragma once

#include <cstddef>
#include <vector>

#include "topology/search/column.h"

namespace treering::search {

// `count` columns for `rate` GB/s each; none where no ring (no tree) was found.
std::vector<Column> balanced_columns(const Network& network, Pattern pattern, size_t count, double rate, size_t passes);

}  // namespace treering::search
