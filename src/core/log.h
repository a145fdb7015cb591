// SPDX-License-Identifier: Apache-2.0
// Log: one line for a person, at a level set by TREERING_DEBUG. The code that decides something logs it, once.
//
//   treering 2026-01-31 12:00:00.123 node7:4711 rank 3 I: text        time of day here, host, process; the rank where it is known
#pragma once

#include <cstdint>
#include <string>

namespace treering {

enum class LogLevel { kError, kWarn, kInfo, kTrace };

bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);

// While it lives, lines of this thread have that rank: of the communicator that is being created, as a process may have
// several.
class LogRank {
 public:
  explicit LogRank(uint32_t rank);
  ~LogRank();
  LogRank(const LogRank&) = delete;
  LogRank& operator=(const LogRank&) = delete;

 private:
  int64_t before_;
};

}  // namespace treering
