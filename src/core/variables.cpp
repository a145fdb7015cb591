// SPDX-License-Identifier: Apache-2.0
#include "core/variables.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string_view>

#include "core/config.h"
#include "core/log.h"
#include "core/spelling.h"

namespace treering {
namespace {

constexpr std::string_view kPrefix = "TREERING_";
constexpr size_t kMinInCommon = 4;

// Those that are no options of a communicator.
constexpr std::string_view kOfTheProcess[] = {
    "TREERING_DEBUG",       "TREERING_DEBUG_FILE",    "TREERING_DEVICE_LIBRARY",
    "TREERING_CUDA_DRIVER", "TREERING_VERBS_LIBRARY", "TREERING_UCX_LIBRARY",
    "TREERING_RANK",        "TREERING_RANKS",         "TREERING_ID",
    "TREERING_SECRET"};

std::vector<std::string_view> known_variables() {
  std::vector<std::string_view> names(std::begin(kOfTheProcess), std::end(kOfTheProcess));
  for (const OptionRow& row : option_table())
    if (row.environment != nullptr) names.emplace_back(row.environment);
  return names;
}

}  // namespace

std::vector<UnknownVariable> unknown_variables(const char* const* environment) {
  const std::vector<std::string_view> known = known_variables();
  std::vector<UnknownVariable> found;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    std::string_view name(*environment);
    name = name.substr(0, name.find('='));
    if (name.substr(0, kPrefix.size()) != kPrefix || std::find(known.begin(), known.end(), name) != known.end())
      continue;
    // TREERING_TIMEOUT_MS, TREERING_ALGORITHM: options by another spelling of their name
    const auto longer = std::find_if(known.begin(), known.end(), [name](std::string_view each) {
      return each.size() >= kPrefix.size() + kMinInCommon && name.substr(0, each.size()) == each;
    });
    const auto nearest = longer != known.end() ? longer
                                               : std::min_element(known.begin(), known.end(),
                                                                  [name](std::string_view a, std::string_view b) {
                                                                    return edits(name, a) < edits(name, b);
                                                                  });
    if (longer != known.end() || edits(name, *nearest) <= kMaxEdits)
      found.push_back({fmt::format("{} is not known and has no effect; did you mean {}?", name, *nearest), true});
    else
      found.push_back(
          {fmt::format("{} is not known and has no effect; docs/options.md lists the variables", name), false});
  }
  return found;
}

void tell_unknown_variables() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const UnknownVariable& each : unknown_variables(environ))
      log_line(each.is_near ? LogLevel::kWarn : LogLevel::kInfo, each.text);
  });
}

}  // namespace treering
