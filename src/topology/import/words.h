// SPDX-License-Identifier: Apache-2.0
// Words of a description: numbers, lists, parts, rates. A function that cannot read its word returns nothing, or says
// what is wrong with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/graph.h"

namespace treering {

// A kind of part, and how descriptions call it: "cpu" 0.
struct PartName {
  NodeKind kind = NodeKind::kGpu;
  uint32_t number = 0;
};

struct RateWord {
  double gbps = 0;
  uint32_t count = 1;
  LinkOrigin origin = LinkOrigin::kGiven;
  std::optional<LinkKind> kind;  // where the word says it
};

std::string_view part_prefix(NodeKind kind);  // "cpu"; "" for a kind that no description has

// For an error: in quotes, shortened, without control characters.
std::string quoted_word(std::string_view word);

// At most `most`, without a sign.
std::optional<uint32_t> number_of(std::string_view word, uint32_t most);

// "0-3,6", "cpu0", "pci0-3,pci8", "2": a number alone is a GPU. "" where it was read; else what is wrong.
std::string parse_parts(std::string_view word, std::vector<PartName>* parts);

// "24", "pcie4x16".
std::string parse_rate(std::string_view word, RateWord* rate);

// `count` links of a generation, from the table.
std::string table_rate(LinkKind kind, uint32_t generation, uint32_t count, RateWord* rate);

}  // namespace treering
