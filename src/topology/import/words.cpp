// SPDX-License-Identifier: Apache-2.0
#include "topology/import/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "topology/import/description.h"

namespace treering {
namespace {

constexpr size_t kMaxShown = 40;  // characters of a word

struct PartPrefix {
  NodeKind kind;
  std::string_view prefix;
};
constexpr PartPrefix kPartPrefixes[] = {
    {NodeKind::kGpu, "gpu"},       {NodeKind::kPackage, "cpu"}, {NodeKind::kNumaNode, "numa"},
    {NodeKind::kPciBridge, "pci"}, {NodeKind::kNic, "nic"},     {NodeKind::kNvSwitch, "switch"},
    {NodeKind::kNetwork, "net"},
};

constexpr std::pair<std::string_view, LinkKind> kTableKinds[] = {
    {"pcie", LinkKind::kPcie}, {"nvlink", LinkKind::kNvlink}, {"xgmi", LinkKind::kXgmi}};

size_t letters_of(std::string_view word) {
  size_t letters = 0;
  while (letters < word.size() && word[letters] >= 'a' && word[letters] <= 'z') ++letters;
  return letters;
}

// "pci0-3"
std::string parse_item(std::string_view item, std::vector<PartName>* parts) {
  const size_t letters = letters_of(item);
  const std::string_view prefix = item.substr(0, letters), numbers = item.substr(letters);
  const auto* kind = std::find_if(std::begin(kPartPrefixes), std::end(kPartPrefixes), [&](const PartPrefix& row) {
    return row.prefix == (prefix.empty() ? "gpu" : prefix);
  });
  if (kind == std::end(kPartPrefixes))
    return fmt::format("{} names no part: say gpu, cpu, numa, pci, nic, switch or net and a number", quoted_word(item));
  const size_t dash = numbers.find('-');
  const auto first = number_of(numbers.substr(0, dash), kMaxPartNumber);
  const auto last = dash == std::string_view::npos ? first : number_of(numbers.substr(dash + 1), kMaxPartNumber);
  if (!first || !last)
    return fmt::format("{} is no number of a part, nor a range of them: say 0 to {}, as 3 or 0-3 or 0-3,6",
                       quoted_word(item), kMaxPartNumber);
  if (*last < *first)
    return fmt::format("{} is a range that ends before it begins: say {}-{}", quoted_word(item), *last, *first);
  for (uint32_t number = *first; number <= *last; ++number) parts->push_back({kind->kind, number});
  return {};
}

}  // namespace

std::string_view part_prefix(NodeKind kind) {
  for (const PartPrefix& row : kPartPrefixes)
    if (row.kind == kind) return row.prefix;
  return {};
}

std::string quoted_word(std::string_view word) {
  std::string text("\"");
  for (char c : word.substr(0, kMaxShown)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (word.size() > kMaxShown ? "...\"" : "\"");
}

std::optional<uint32_t> number_of(std::string_view word, uint32_t most) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number > most) return std::nullopt;
  return number;
}

std::string parse_parts(std::string_view word, std::vector<PartName>* parts) {
  for (size_t begin = 0; begin <= word.size();) {
    const size_t comma = std::min(word.find(',', begin), word.size());
    if (std::string wrong = parse_item(word.substr(begin, comma - begin), parts); !wrong.empty()) return wrong;
    if (parts->size() > kMaxDescribedNodes)
      return fmt::format("{} names more than {} parts", quoted_word(word), kMaxDescribedNodes);
    begin = comma + 1;
  }
  return {};
}

std::string table_rate(LinkKind kind, uint32_t generation, uint32_t count, RateWord* rate) {
  const std::optional<double> each = table_gbps(kind, generation);
  if (!each)
    return fmt::format(
        "generation {} of {} is not in the table (docs/topology.md): say a rate in GB/s, as in "
        "\"link A B at 25\"",
        generation, name_of(kind));
  *rate = {*each * count, count, LinkOrigin::kTable, kind};
  return {};
}

std::string parse_rate(std::string_view word, RateWord* rate) {
  for (const auto& [name, kind] : kTableKinds) {
    if (!word.starts_with(name)) continue;
    const std::string_view rest = word.substr(name.size());
    const size_t sign = rest.find('x');
    const auto generation = number_of(rest.substr(0, sign), kMaxPartNumber);
    const auto count =
        sign == std::string_view::npos ? std::optional(uint32_t{0}) : number_of(rest.substr(sign + 1), kMaxLinkCount);
    if (!generation || !count || *count == 0)
      return fmt::format("{} is no rate: say generation and number, 1 to {}, as {}4x16", quoted_word(word),
                         kMaxLinkCount, name);
    return table_rate(kind, *generation, *count, rate);
  }
  double gbps = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), gbps);
  if (error != std::errc() || end != word.data() + word.size() || !(gbps >= kMinGivenGbps && gbps <= kMaxGivenGbps))
    return fmt::format("{} is no rate: say GB/s each way, {} to {}, or a generation and a number, as pcie4x16",
                       quoted_word(word), kMinGivenGbps, kMaxGivenGbps);
  *rate = {gbps, 1, LinkOrigin::kGiven, std::nullopt};
  return {};
}

}  // namespace treering
