#include "core/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

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

LogLevel level_from_environment(bool* unknown) {
  const char* text = std::getenv("TREERING_DEBUG");
  std::string_view word = text ? text : "";
  *unknown = false;
  if (word == "ERROR") return LogLevel::kError;
  if (word == "INFO") return LogLevel::kInfo;
  if (word == "TRACE") return LogLevel::kTrace;
  *unknown = !(word.empty() || word == "WARN");
  return LogLevel::kWarn;
}

spdlog::sink_ptr make_sink() {
  const char* file = std::getenv("TREERING_DEBUG_FILE");
  if (file == nullptr || *file == '\0') return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::string name = file;
  if (size_t at = name.find("%p"); at != std::string::npos) name.replace(at, 2, std::to_string(getpid()));
  try {
    return std::make_shared<spdlog::sinks::basic_file_sink_mt>(name);
  } catch (const spdlog::spdlog_ex& error) {
    fmt::print(stderr, "treering: TREERING_DEBUG_FILE={}: {}; logging to standard error\n", file, error.what());
    return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
}

spdlog::logger* logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* instance = [] {
    auto* made = new spdlog::logger("treering", make_sink());
    made->set_pattern("treering %P %L: %v");
    bool unknown = false;
    made->set_level(to_spdlog(level_from_environment(&unknown)));
    made->flush_on(spdlog::level::trace);
    if (unknown)
      made->warn("TREERING_DEBUG is '{}'; known are ERROR, WARN, INFO, TRACE", std::getenv("TREERING_DEBUG"));
    return made;
  }();
  return instance;
}

}  // namespace

bool log_enabled(LogLevel level) { return logger()->should_log(to_spdlog(level)); }
void log_line(LogLevel level, const std::string& text) { logger()->log(to_spdlog(level), text); }

}  // namespace treering
