// SPDX-License-Identifier: Apache-2.0
// What the tools say about wrong arguments, in one form: "error: OPTION: what is wrong and what it may be", and where the options are
// listed.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace treering::tools {

inline constexpr int kBadArguments = 2;  // exit status

// Levenshtein's distance.
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
  constexpr size_t kMostEdits = 2, kLeastInCommon = 4;
  std::string best;
  size_t least = std::min(kMostEdits, typed.size() / 3) + 1;
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
    if (common >= kLeastInCommon && (b == name.end() || a == typed.end() || common + 1 == name.size())) return name;
  }
  return "";
}

// "; did you mean NAME?", or "".
inline std::string suggestion(const std::string& typed, const std::vector<std::string>& names,
                              const char* dashes = "") {
  const std::string name = nearest(typed, names);
  return name.empty() ? "" : "; did you mean " + std::string(dashes) + name + "?";
}

// What is wrong, in words. `app` has parsed, and failed with `error`.
inline std::string text_of(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extras = app.remaining();
    for (const std::string& word : extras)
      if (const size_t begin = word.find_first_not_of('-'); begin != 0 && begin != std::string::npos) {
        const std::string typed = word.substr(begin, word.find('=') - begin);
        return word + ": there is no such option" + suggestion(typed, names, "--");
      }
    if (!extras.empty()) return "\"" + extras[0] + "\" is one argument too many";
  }
  std::string text = error.what();
  if (const size_t at = text.find(": 1 required "); at != std::string::npos)
    text.resize(at), text += ": a value is missing";
  return text;
}

// Prints it; returns the exit status: 0 after --help and --version.
inline int refuse(const CLI::App& app, const CLI::ParseError& error, const std::string& text,
                  const std::string& more = "") {
  if (error.get_exit_code() == 0) return app.exit(error);
  std::fprintf(stderr, "error: %s\n%s(%s --help lists the options)\n", text.c_str(), more.c_str(),
               app.get_name().c_str());
  return kBadArguments;
}

}  // namespace treering::tools
