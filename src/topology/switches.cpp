// SPDX-License-Identifier: Apache-2.0
#include "topology/switches.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "topology/location.h"

namespace treering {

SwitchPath switch_path(const std::string& names) {
  std::vector<uint64_t> numbers;
  for (size_t end = 0; end < names.size(); ++end) {
    end = std::min(names.find('.', end), names.size());
    numbers.push_back(identity_of(std::string_view(names).substr(0, end)));
  }
  SwitchPath path{};
  const size_t count = std::min(numbers.size(), path.size());
  std::copy(numbers.end() - static_cast<std::ptrdiff_t>(count), numbers.end(), path.begin());
  return path;
}

std::string switches_from_slurm(const std::string& host) {
  const char *address = std::getenv("SLURM_TOPOLOGY_ADDR"), *pattern = std::getenv("SLURM_TOPOLOGY_ADDR_PATTERN");
  if (address == nullptr || pattern == nullptr) return {};
  const std::string names = address, kinds = pattern;
  const size_t dot = names.rfind('.');
  if (dot == std::string::npos || dot == 0 || !kinds.ends_with("switch.node")) return {};
  const std::string node = names.substr(dot + 1);
  return node == host || node == host.substr(0, host.find('.')) ? names.substr(0, dot) : std::string();
}

}  // namespace treering
