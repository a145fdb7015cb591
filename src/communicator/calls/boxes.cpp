// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/boxes.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering {
namespace {

trBox_t intersection(const trBox_t& a, const trBox_t& b, int dimensions) {
  trBox_t result{};
  for (int d = 0; d < dimensions; ++d) {
    result.lo[d] = std::max(a.lo[d], b.lo[d]);
    result.hi[d] = std::min(a.hi[d], b.hi[d]);
  }
  return result;
}

// `whole` less `part`, which lies inside: at most two boxes a dimension.
void subtract(trBox_t whole, const trBox_t& part, int dimensions, std::vector<trBox_t>* rest) {
  for (int d = 0; d < dimensions; ++d) {
    if (whole.lo[d] < part.lo[d]) {
      rest->push_back(whole);
      rest->back().hi[d] = part.lo[d];
      whole.lo[d] = part.lo[d];
    }
    if (part.hi[d] < whole.hi[d]) {
      rest->push_back(whole);
      rest->back().lo[d] = part.hi[d];
      whole.hi[d] = part.hi[d];
    }
  }
}

// Takes what `held` has of the remaining boxes.
void take(std::vector<trBox_t>* remaining, const trBox_t& held, int dimensions, BoxTransfer transfer,
          std::vector<BoxTransfer>* transfers) {
  std::vector<trBox_t> rest;
  for (const trBox_t& box : *remaining) {
    transfer.box = intersection(box, held, dimensions);
    if (is_empty(transfer.box, dimensions)) {
      rest.push_back(box);
      continue;
    }
    transfers->push_back(transfer);
    subtract(box, transfer.box, dimensions, &rest);
  }
  *remaining = std::move(rest);
}

// Unsigned: from INT64_MIN to INT64_MAX is more than an int64_t holds.
size_t length_of(const trBox_t& box, int d) { return static_cast<size_t>(box.hi[d]) - static_cast<size_t>(box.lo[d]); }

// The dimension in which rows lie: behind it `box` is as wide as `outer`, so what it has there is contiguous.
int row_dimension(const trBox_t& box, const trBox_t& outer, int dimensions) {
  int d = dimensions - 1;
  while (d > 0 && length_of(box, d) == length_of(outer, d)) --d;
  return d;
}

}  // namespace

bool is_empty(const trBox_t& box, int dimensions) {
  for (int d = 0; d < dimensions; ++d)
    if (box.lo[d] >= box.hi[d]) return true;
  return false;
}

std::string box_text(const trBox_t& box, int dimensions) {
  std::string text;
  for (int d = 0; d < dimensions; ++d) text += fmt::format("{}[{}, {})", d == 0 ? "" : " x ", box.lo[d], box.hi[d]);
  return text;
}

Status plan_transfers(const std::vector<RankBoxes>& ranks, int dimensions, std::vector<BoxTransfer>* transfers) {
  transfers->clear();
  const auto n = static_cast<uint32_t>(ranks.size());
  for (uint32_t destination = 0; destination < n; ++destination)
    for (uint32_t j = 0; j < ranks[destination].needed.size(); ++j) {
      const trBox_t& needed = ranks[destination].needed[j];
      if (is_empty(needed, dimensions)) continue;
      std::vector<trBox_t> remaining = {needed};
      for (uint32_t k = 0; k < n && !remaining.empty(); ++k) {
        uint32_t source = k;  // the destination itself, then the others in the order of the ranks
        if (k == 0)
          source = destination;
        else if (k <= destination)
          source = k - 1;
        for (uint32_t i = 0; i < ranks[source].held.size(); ++i)
          take(&remaining, ranks[source].held[i], dimensions, {source, destination, i, j, {}}, transfers);
      }
      if (!remaining.empty())
        return {trInvalidUsage,
                fmt::format("trExchangeCreate: no rank holds {} of the box {} that rank {} needs",
                            box_text(remaining[0], dimensions), box_text(needed, dimensions), destination)};
    }
  return {};
}

bool volume_of(const trBox_t& box, int dimensions, size_t* elements) {
  *elements = is_empty(box, dimensions) ? 0 : 1;
  for (int d = 0; d<dimensions&& * elements> 0; ++d)
    if (__builtin_mul_overflow(*elements, length_of(box, d), elements)) return false;
  return true;
}

size_t row_count(const trBox_t& box, const trBox_t& outer, int dimensions) {
  size_t rows = 1;
  for (int d = row_dimension(box, outer, dimensions); d-- > 0;) rows *= length_of(box, d);
  return rows;
}

std::vector<Row> rows_of(const trBox_t& box, const trBox_t& outer, int dimensions) {
  size_t strides[TR_MAX_DIMENSIONS] = {};
  size_t stride = 1;
  for (int d = dimensions; d-- > 0;) {
    strides[d] = stride;
    stride *= length_of(outer, d);
  }
  const int along = row_dimension(box, outer, dimensions);
  const size_t length = length_of(box, along) * strides[along];
  int64_t at[TR_MAX_DIMENSIONS];
  std::copy(box.lo, box.lo + dimensions, at);
  std::vector<Row> rows;
  rows.reserve(row_count(box, outer, dimensions));
  for (;;) {
    size_t offset = 0;
    for (int d = 0; d < dimensions; ++d) offset += static_cast<size_t>(at[d] - outer.lo[d]) * strides[d];
    rows.push_back({offset, length});
    int d = along - 1;
    while (d >= 0 && ++at[d] == box.hi[d]) at[d] = box.lo[d], --d;
    if (d < 0) return rows;
  }
}

}  // namespace treering
