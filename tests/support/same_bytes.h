// SPDX-License-Identifier: Apache-2.0
// Whether payloads are equal, as == of vectors, which compares one byte after the other: a sanitizer sees each of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace treering {

inline bool same_bytes(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline bool same_bytes(const std::vector<std::vector<std::byte>>& a, const std::vector<std::vector<std::byte>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& one, const auto& other) { return same_bytes(one, other); });
}

}  // namespace treering
