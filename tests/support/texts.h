// SPDX-License-Identifier: Apache-2.0
// Texts of errors, for tests that compare them.
#pragma once

#include <regex>
#include <string>

namespace treering::testing {

// "rank 1 (pid 17 on b) called" -> "rank 1 called"
inline std::string without_pids(const std::string& text) {
  static const std::regex kPid(R"( \(pid \d+[^)]*\))");
  return std::regex_replace(text, kPid, "");
}

}  // namespace treering::testing
