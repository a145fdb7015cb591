// SPDX-License-Identifier: Apache-2.0
// Boxes: who sends which part of a distributed array to whom.
//
//   held by 0   +-----+                 needed by 2 = the union of parts, each with one holder:
//   held by 1   |     +-----+             a part is the intersection of a needed box and a held box, less what an
//   needed by 2 |  +--|--+  |             earlier holder gives already
//               +-----+--+--+
//
// Pure functions of all ranks' boxes: every rank computes the same plan and keeps what concerns it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace treering {

struct RankBoxes {
  std::vector<trBox_t> held, needed;
};

// One part on its way from a box of one rank to a box of another.
struct BoxTransfer {
  uint32_t source = 0, destination = 0;  // ranks
  uint32_t held = 0, needed = 0;         // their boxes
  trBox_t box{};
};

// Every transfer between all ranks, in an order that both ends of each pair share; or an error that names an element
// that no rank holds. If several hold it, the destination itself comes first, then the lowest rank.
Status plan_transfers(const std::vector<RankBoxes>& ranks, int dimensions, std::vector<BoxTransfer>* transfers);

// The rows of `box` in a dense array of the shape of `outer`: element offsets and lengths, neighbours joined.
struct Row {
  size_t offset, length;
};
std::vector<Row> rows_of(const trBox_t& box, const trBox_t& outer, int dimensions);
// How many there are.
size_t row_count(const trBox_t& box, const trBox_t& outer, int dimensions);

// Elements of a box whose lo are not above its hi; false when size_t does not count them.
bool volume_of(const trBox_t& box, int dimensions, size_t* elements);

bool is_empty(const trBox_t& box, int dimensions);
std::string box_text(const trBox_t& box, int dimensions);

}  // namespace treering
