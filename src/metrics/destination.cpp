// SPDX-License-Identifier: Apache-2.0
#include "metrics/destination.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>

namespace treering {

std::string metrics_path(const std::string& option, const ProcessPlace& place) {
  std::string path;
  bool is_own = false;  // no other process has the same
  for (size_t i = 0; i < option.size(); ++i) {
    const char next = option[i] == '%' && i + 1 < option.size() ? option[i + 1] : '\0';
    if (next == 'r') path += std::to_string(place.rank);
    if (next == 'p') path += std::to_string(place.pid);
    if (next == 'h') path += place.host;
    is_own = is_own || next == 'r' || next == 'p';
    if (next == 'r' || next == 'p' || next == 'h')
      ++i;
    else
      path += option[i];
  }
  if (is_own || place.rank == 0) return path;
  std::filesystem::path other(path);
  other.replace_filename(fmt::format("{}-rank{}{}", other.stem().string(), place.rank, other.extension().string()));
  return other.string();
}

uint32_t metrics_port(const std::string& option, const ProcessPlace& place) {
  uint32_t port = 0;
  std::from_chars(option.data() + 1, option.data() + option.size(), port);
  const uint32_t own = port + place.on_host;
  return own <= 65535 ? own : 0;
}

std::string trace_name(const ProcessPlace& place) {
  return fmt::format("rank{}-{}-{}.json", place.rank, place.host, place.pid);
}

}  // namespace treering
