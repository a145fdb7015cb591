// SPDX-License-Identifier: Apache-2.0
// Whether a call would write what it still reads, or write a place twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace treering {

// Bytes of memory; empty where nothing is.
struct Range {
  uintptr_t begin = 0, end = 0;
  Range() = default;
  Range(const void* buffer, size_t bytes)
      : begin(reinterpret_cast<uintptr_t>(buffer)), end(reinterpret_cast<uintptr_t>(buffer) + bytes) {}
  bool empty() const { return begin == end; }
  bool meets(const Range& other) const { return std::max(begin, other.begin) < std::min(end, other.end); }
};

// Two written ranges that meet, or a written one and one that is read: stored in the pair. Sorts what is written.
inline bool find_overlap(std::span<const Range> read, std::span<Range> written, Range* one, Range* other) {
  // Empty ranges last: they are nowhere.
  std::sort(written.begin(), written.end(),
            [](const Range& a, const Range& b) { return a.empty() != b.empty() ? b.empty() : a.begin < b.begin; });
  while (!written.empty() && written.back().empty()) written = written.first(written.size() - 1);
  for (size_t i = 1; i < written.size(); ++i)
    if (written[i - 1].meets(written[i])) {
      *one = written[i - 1];
      *other = written[i];
      return true;
    }
  for (const Range& range : read) {
    // Those that are written lie apart now: the first that ends behind the beginning is the only one to look at.
    auto at = std::upper_bound(written.begin(), written.end(), range.begin,
                               [](uintptr_t begin, const Range& each) { return begin < each.end; });
    if (at != written.end() && at->meets(range)) {
      *one = range;
      *other = *at;
      return true;
    }
  }
  return false;
}

}  // namespace treering
