// SPDX-License-Identifier: Apache-2.0
// Unique ids as the driver passes them on.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "treering/treering.h"

namespace faults {

inline std::string in_hex(const trUniqueId& id) {
  std::string text;
  char digits[3];
  for (char byte : id.internal) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

inline trUniqueId from_hex(const std::string& text) {
  trUniqueId id{};
  for (size_t i = 0; i < sizeof id.internal && 2 * i + 1 < text.size(); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

}  // namespace faults
