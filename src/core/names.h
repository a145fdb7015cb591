// SPDX-License-Identifier: Apache-2.0
// Names: of types and operations for messages (of a value that is none, its number), of the ranks that there are, and
// of collectives as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/types.h"

namespace treering {

inline std::string name_of(trDataType_t type) {
  const DataTypeInfo* row = find_type(type);
  return row != nullptr ? row->name : std::to_string(static_cast<int>(type));
}

inline std::string name_of(trRedOp_t op) {
  const OpInfo* row = find_op(op);
  return row != nullptr ? row->name : std::to_string(static_cast<int>(op));
}

// What ranks `ranks` of them have: "0 to 3", or "0" where there is one.
inline std::string numbers_of_ranks(uint32_t ranks) { return ranks <= 1 ? "0" : "0 to " + std::to_string(ranks - 1); }

// Case, "-" and "_" do not count: ReduceScatter and reduce_scatter are reduce-scatter.
inline bool same_collective(std::string_view a, std::string_view b) {
  const auto next_letter = [](std::string_view* text) {
    while (!text->empty() && (text->front() == '-' || text->front() == '_')) text->remove_prefix(1);
    if (text->empty()) return '\0';
    const char c = text->front();
    text->remove_prefix(1);
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  for (;;) {
    const char of_a = next_letter(&a), of_b = next_letter(&b);
    if (of_a != of_b) return false;
    if (of_a == '\0') return true;
  }
}

}  // namespace treering
