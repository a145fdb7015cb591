// SPDX-License-Identifier: Apache-2.0
// Which protocols kernels may use (docs/cuda.md), as the option device_protocol has it:
//
//   text   ::=  part { ";" part }
//   part   ::=  [ collective ":" ] [ "^" ] protocol { "," protocol }        ^: all but these
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace treering {

// In the order of their names in messages: ll, ll128, simple.
enum ProtocolBit : uint32_t { kAllowLl = 1, kAllowLl128 = 2, kAllowSimple = 4, kAllowAllProtocols = 7 };

struct ProtocolPart {
  std::string collective;  // empty: all
  uint32_t allowed = kAllowAllProtocols;
};

Status parse_protocols(const std::string& text, std::vector<ProtocolPart>* parts);
// If there are several parts for a collective, the last counts. `text` has been parsed before.
uint32_t allowed_protocols(const std::string& text, const std::string& collective);

}  // namespace treering
