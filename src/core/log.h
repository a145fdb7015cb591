// Log: one line for a person, at a level set by TREERING_DEBUG. Whoever decides logs, once.
#pragma once

#include <string>

namespace treering {

enum class LogLevel { kError, kWarn, kInfo, kTrace };

bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);

}  // namespace treering
