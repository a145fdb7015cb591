// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <strings.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/process.h"

namespace treering {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kTrace:
      return spdlog::level::trace;
  }
  return spdlog::level::err;
}

char letter_of(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return 'E';
    case LogLevel::kWarn:
      return 'W';
    case LogLevel::kInfo:
      return 'I';
    case LogLevel::kTrace:
      return 'T';
  }
  return '?';
}

LogLevel level_from_environment(bool* unknown) {
  const char* text = std::getenv("TREERING_DEBUG");
  const auto is = [word = text ? text : ""](const char* level) { return strcasecmp(word, level) == 0; };
  *unknown = false;
  if (is("ERROR")) return LogLevel::kError;
  if (is("INFO")) return LogLevel::kInfo;
  if (is("TRACE")) return LogLevel::kTrace;
  *unknown = !is("") && !is("WARN");
  return LogLevel::kWarn;
}

spdlog::sink_ptr make_sink() {
  const char* file = std::getenv("TREERING_DEBUG_FILE");
  if (file == nullptr || *file == '\0') return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::string name = file;
  if (size_t at = name.find("%p"); at != std::string::npos) name.replace(at, 2, std::to_string(getpid()));
  std::string why;
  try {
    // The sink would make missing directories: a misspelt path would hide the log.
    const std::filesystem::path directory = std::filesystem::path(name).parent_path();
    if (directory.empty() || std::filesystem::is_directory(directory))
      return std::make_shared<spdlog::sinks::basic_file_sink_mt>(name);
    why = fmt::format("'{}' is not a directory; make it, or name a file in one that exists", directory.string());
  } catch (const std::exception& error) {
    why = fmt::format("{}; name a file that this process may write", error.what());
  }
  fmt::print(stderr, "treering: TREERING_DEBUG_FILE is '{}': {}; logging to standard error\n", file, why);
  return std::make_shared<spdlog::sinks::stderr_sink_mt>();
}

std::string safe_in_pattern(const std::string& text) {
  std::string safe;
  for (const char c : text) safe.append(c == '%' ? 2 : 1, c);
  return safe;
}

// The rank that lines of this thread have; -1: none.
thread_local int64_t rank_of_thread = -1;

void write(spdlog::logger* to, LogLevel level, const std::string& text) {
  const std::string rank = rank_of_thread < 0 ? "" : fmt::format(" rank {}", rank_of_thread);
  to->log(to_spdlog(level), fmt::format("{} {}: {}", rank, letter_of(level), text));
}

spdlog::logger* logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* instance = [] {
    auto* made = new spdlog::logger("treering", make_sink());
    made->set_pattern("treering %Y-%m-%d %H:%M:%S.%e " + safe_in_pattern(short_host_name()) + ":%P%v");
    bool unknown = false;
    made->set_level(to_spdlog(level_from_environment(&unknown)));
    made->flush_on(spdlog::level::trace);
    if (unknown)
      write(made, LogLevel::kWarn,
            fmt::format("TREERING_DEBUG is '{}'; give ERROR, WARN, INFO or TRACE (for example TREERING_DEBUG=INFO); "
                        "WARN is used",
                        std::getenv("TREERING_DEBUG")));
    return made;
  }();
  return instance;
}

}  // namespace

bool log_enabled(LogLevel level) { return logger()->should_log(to_spdlog(level)); }
void log_line(LogLevel level, const std::string& text) {
  if (log_enabled(level)) write(logger(), level, text);
}

LogRank::LogRank(uint32_t rank) : before_(rank_of_thread) { rank_of_thread = rank; }
LogRank::~LogRank() { rank_of_thread = before_; }

}  // namespace treering
