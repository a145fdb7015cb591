// SPDX-License-Identifier: Apache-2.0
// How names may be spelt, and which name was probably meant by one that there is not.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace treering::tools {

// Levenshtein's distance. The library has it, too (src/core/spelling.h): the perf tools see the C API alone.
inline size_t edits(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Small letters alone, without what stands between words.
inline std::string letters_of(const std::string& name) {
  std::string letters;
  for (const char c : name)
    if (c != '-' && c != '_') letters.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  return letters;
}

// The words of a name in the order of the alphabet, so that their order does not count.
inline std::string sorted_words(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name)
    if (c == '-' || c == '_')
      words.emplace_back();
    else
      words.back().push_back(c);
  std::sort(words.begin(), words.end());
  return letters_of(std::accumulate(words.begin(), words.end(), std::string()));
}

// How far `typed` is from `name`; the words may stand in another order, also without anything between them.
inline size_t distance(const std::string& typed, const std::string& name) {
  std::string letters = letters_of(typed);
  const std::string wanted = letters_of(name);
  size_t least = std::min(edits(letters, wanted), edits(sorted_words(typed), sorted_words(name)));
  for (size_t turn = 1; turn < letters.size(); ++turn) {
    std::rotate(letters.begin(), letters.begin() + 1, letters.end());
    if (letters == wanted) least = std::min<size_t>(least, 1);
  }
  return least;
}

// The one of `names` that was probably meant, or "".
inline std::string nearest(const std::string& typed, const std::vector<std::string>& names) {
  constexpr size_t kMaxEdits = 2, kMinInCommon = 4;
  std::string best;
  size_t least = std::min(kMaxEdits, typed.size() / 3) + 1;
  for (const std::string& name : names)
    if (const size_t now = distance(typed, name); now < least) {
      least = now;
      best = name;
    }
  if (!best.empty()) return best;
  // A beginning of it, or more than it: --iterations for --iters.
  for (const std::string& name : names) {
    const auto [a, b] = std::mismatch(typed.begin(), typed.end(), name.begin(), name.end());
    const auto common = static_cast<size_t>(a - typed.begin());
    if (common >= kMinInCommon && (b == name.end() || a == typed.end() || common + 1 == name.size())) return name;
  }
  return "";
}

// "; did you mean NAME?", or "".
inline std::string suggestion(const std::string& typed, const std::vector<std::string>& names,
                              const char* dashes = "") {
  const std::string name = nearest(typed, names);
  return name.empty() ? "" : "; did you mean " + std::string(dashes) + name + "?";
}

}  // namespace treering::tools
