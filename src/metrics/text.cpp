// SPDX-License-Identifier: Apache-2.0
#include "metrics/text.h"

#include <fmt/format.h>

#include <cstdint>

namespace treering {
namespace {

// Bytes of the character at the beginning of `text`; 0: it is none.
size_t character_at(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  size_t bytes = 0;
  if (first >= 0xC2 && first < 0xE0) bytes = 2;
  if (first >= 0xE0 && first < 0xF0) bytes = 3;
  if (first >= 0xF0 && first < 0xF5) bytes = 4;
  for (size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  // Forms that are too long, surrogates, and what is above the last character.
  const bool is_wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
                        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90);
  return is_wrong ? 0 : bytes;
}

}  // namespace

std::string as_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = character_at(text);
    if (bytes == 0)
      result += '?';
    else
      result += text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return result;
}

std::string as_label_value(std::string_view text) {
  std::string result;
  for (const char c : as_utf8(text)) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result;
}

std::string as_json_text(std::string_view text) {
  std::string result;
  for (const char c : as_utf8(text)) {
    if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      continue;
    }
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace treering
