// SPDX-License-Identifier: Apache-2.0
#include "core/device_protocols.h"

#include <fmt/format.h>

#include "core/names.h"

namespace treering {
namespace {

constexpr const char* kNames[] = {"ll", "ll128", "simple"};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

Status parse_protocols(const std::string& text, std::vector<ProtocolPart>* parts) {
  parts->clear();
  if (text.empty()) return {};
  for (std::string section : split(text, ';')) {
    ProtocolPart part;
    if (const size_t colon = section.find(':'); colon != std::string::npos) {
      part.collective = section.substr(0, colon);
      section = section.substr(colon + 1);
    }
    const bool excludes = !section.empty() && section[0] == '^';
    uint32_t named = 0;
    for (const std::string& word : split(excludes ? section.substr(1) : section, ',')) {
      uint32_t bit = 0;
      for (uint32_t i = 0; i < 3; ++i)
        if (word == kNames[i]) bit = 1u << i;
      if (bit == 0)
        return {trInvalidArgument,
                fmt::format("TREERING_DEVICE_PROTOCOL is '{}': '{}' is no protocol; known are ll, ll128 and simple",
                            text, word)};
      named |= bit;
    }
    part.allowed = excludes ? kAllowAllProtocols & ~named : named;
    if (part.allowed == 0)
      return {
          trInvalidArgument,
          fmt::format("TREERING_DEVICE_PROTOCOL is '{}', which leaves no protocol; leave ll, ll128 or simple", text)};
    parts->push_back(std::move(part));
  }
  return {};
}

uint32_t allowed_protocols(const std::string& text, const std::string& collective) {
  std::vector<ProtocolPart> parts;
  uint32_t allowed = kAllowAllProtocols;
  if (!parse_protocols(text, &parts).ok()) return allowed;
  for (const ProtocolPart& part : parts)
    if (part.collective.empty() || same_collective(part.collective, collective)) allowed = part.allowed;
  return allowed;
}

}  // namespace treering
