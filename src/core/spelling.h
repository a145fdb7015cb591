// SPDX-License-Identifier: Apache-2.0
// Which name was probably meant by one that is not known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace treering {

inline constexpr size_t kMaxEdits = 2;

constexpr char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Levenshtein's distance; upper and lower case are the same.
inline size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (to_lower(a[i]) == to_lower(b[j]) ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Where the one of `names` is that was probably meant; their number where none was.
inline size_t nearest(std::string_view word, const std::vector<std::string_view>& names) {
  size_t found = names.size(), least = std::min(kMaxEdits, word.size() / 2) + 1;
  for (size_t i = 0; i < names.size(); ++i)
    if (const size_t now = edits(word, names[i]); now < least) {
      least = now;
      found = i;
    }
  return found;
}

// "; did you mean NAME?", or "".
inline std::string suggestion(std::string_view word, const std::vector<std::string_view>& names) {
  const size_t found = nearest(word, names);
  return found == names.size() ? "" : "; did you mean " + std::string(names[found]) + "?";
}

}  // namespace treering
