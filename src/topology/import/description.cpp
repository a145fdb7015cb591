// SPDX-License-Identifier: Apache-2.0
#include "topology/import/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/spelling.h"
#include "topology/import/words.h"

namespace treering {
namespace {

using Words = std::vector<std::string_view>;

struct DescriptionLine {
  size_t number = 0;
  Words words;
};

std::vector<DescriptionLine> lines_of(std::string_view text) {
  std::vector<DescriptionLine> lines;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    line = line.substr(0, line.find('#'));
    begin = end + 1;
    DescriptionLine found{number + 1, {}};
    constexpr std::string_view kBlanks = " \t\r";
    for (size_t at = line.find_first_not_of(kBlanks); at < line.size(); at = line.find_first_not_of(kBlanks, at)) {
      const size_t behind = std::min(line.find_first_of(kBlanks, at), line.size());
      found.words.push_back(line.substr(at, behind - at));
      at = behind;
    }
    if (!found.words.empty()) lines.push_back(std::move(found));
  }
  return lines;
}

class DescriptionReader {
 public:
  DescriptionReader(const std::string& name, LinkGraph* graph) : name_(name), graph_(*graph) {}

  Status run(const std::vector<DescriptionLine>& lines) {
    for (size_t i = 0; i < lines.size(); ++i) {
      line_ = lines[i].number;
      if (lines[i].words[0] == "end") return wrong("\"end\" is without a \"hosts\" before it");
      if (lines[i].words[0] != "hosts") {
        TR_RETURN_IF_ERROR(statement(lines[i].words));
        continue;
      }
      size_t end = i + 1;
      while (end < lines.size() && lines[end].words[0] != "end" && lines[end].words[0] != "hosts") ++end;
      TR_RETURN_IF_ERROR(hosts(lines, i, end));
      i = end;
    }
    return number_gpus(false);
  }

 private:
  using Handler = Status (DescriptionReader::*)(const Words&);
  struct Statement {
    std::string_view name;
    Handler handler;
    std::string_view form;
  };
  static const Statement kStatements[7];

  template <class... Values>
  Status wrong(fmt::format_string<Values...> format, Values&&... values) const {
    return {trInvalidArgument,
            fmt::format("{}:{}: {}", name_, line_, fmt::format(format, std::forward<Values>(values)...))};
  }

  Status statement(const Words& words) {
    std::vector<std::string_view> names;
    for (const Statement& row : kStatements) {
      if (row.name == words[0]) {
        form_ = row.form;
        return (this->*row.handler)(words);
      }
      names.push_back(row.name);
    }
    return wrong("{} is no statement{}: begin with {}, hosts or end", quoted_word(words[0]),
                 suggestion(words[0], names), fmt::join(names, ", "));
  }

  Status hosts(const std::vector<DescriptionLine>& lines, size_t begin, size_t end) {
    const Words& words = lines[begin].words;
    const auto count = words.size() == 2 ? number_of(words[1], kMaxDescribedHosts) : std::nullopt;
    if (!count || *count == 0)
      return wrong("{} is no number of hosts: say \"hosts N\" with 1 to {}",
                   quoted_word(words.size() > 1 ? words[1] : ""), kMaxDescribedHosts);
    if (end == lines.size() || lines[end].words[0] != "end")
      return wrong("\"hosts {}\" is without its \"end\": say end behind what one host has", *count);
    if (lines[end].words.size() > 1) {
      line_ = lines[end].number;
      return wrong("{} is one word too many behind \"end\"", quoted_word(lines[end].words[1]));
    }
    TR_RETURN_IF_ERROR(number_gpus(false));
    for (uint32_t i = 0; i < *count; ++i) {
      host_ = fmt::format("host{}/", hosts_++);
      for (size_t at = begin + 1; at < end; ++at) {
        line_ = lines[at].number;
        TR_RETURN_IF_ERROR(statement(lines[at].words));
      }
      TR_RETURN_IF_ERROR(number_gpus(true));
    }
    host_.clear();
    return {};
  }

  // Those of a host have the numbers behind those that are there, in the order of their own.
  Status number_gpus(bool in_host) {
    std::sort(unnumbered_.begin(), unnumbered_.end());
    for (const auto& [number, node] : unnumbered_) {
      const uint32_t given = in_host ? next_gpu_ : number;
      if (!in_host && given < next_gpu_ && hosts_ > 0)
        return wrong("GPU {} has a number of the hosts' GPUs: give it {} or more, or describe it in a \"hosts\"",
                     number, next_gpu_);
      graph_.nodes[node].number = static_cast<int32_t>(given);
      next_gpu_ = std::max(next_gpu_, given + 1);
    }
    unnumbered_.clear();
    return {};
  }

  Status misformed() const { return wrong("the line is not understood: say \"{}\"", form_); }

  Status parts_of(std::string_view word, std::vector<PartName>* parts) const {
    const std::string what = parse_parts(word, parts);
    return what.empty() ? Status() : wrong("{}", what);
  }

  // A list in which a number alone is a part of `kind`.
  Status list_of(std::string_view word, NodeKind kind, std::vector<PartName>* parts) const {
    TR_RETURN_IF_ERROR(parts_of(word, parts));
    for (PartName& part : *parts) {
      if (part.kind != NodeKind::kGpu && part.kind != kind)
        return wrong("{} is a {} where a {} is expected", quoted_word(word), part_prefix(part.kind), part_prefix(kind));
      part.kind = kind;
    }
    return {};
  }

  Status rate_of(std::string_view word, RateWord* rate) const {
    const std::string what = parse_rate(word, rate);
    return what.empty() ? Status() : wrong("{}", what);
  }

  std::string text_of(const PartName& part) const {
    return fmt::format("{}{}{}", part.kind == NodeKind::kNetwork ? "" : host_, part_prefix(part.kind), part.number);
  }

  bool is_there(const PartName& part) const { return nodes_.count(text_of(part)) != 0; }

  Status node_of(const PartName& part, uint32_t* node) {
    const auto [found, is_new] = nodes_.insert({text_of(part), static_cast<uint32_t>(graph_.nodes.size())});
    *node = found->second;
    if (!is_new) return {};
    if (graph_.nodes.size() >= kMaxDescribedNodes)
      return wrong("{} is a part more than the {} that a description may have", text_of(part), kMaxDescribedNodes);
    graph_.nodes.push_back({part.kind, text_of(part), -1});
    if (part.kind == NodeKind::kGpu) unnumbered_.push_back({part.number, *node});
    return {};
  }

  // An end of a link: GPUs and NICs are declared before, other parts are there by being named.
  Status end_of(const PartName& part, uint32_t* node) {
    if ((part.kind == NodeKind::kGpu || part.kind == NodeKind::kNic) && !is_there(part))
      return wrong("{} is not declared: say \"{} {}\" in a line before", text_of(part), part_prefix(part.kind),
                   part.number);
    return node_of(part, node);
  }

  Status add_link(const PartName& one, const PartName& other, LinkKind kind, const RateWord& rate) {
    uint32_t a = 0, b = 0;
    TR_RETURN_IF_ERROR(end_of(one, &a));
    TR_RETURN_IF_ERROR(end_of(other, &b));
    if (a == b) return wrong("{} is linked with itself: name two parts", text_of(one));
    const auto [known, is_new] = links_.insert({{std::min(a, b), std::max(a, b), kind}, line_});
    if (!is_new)
      return wrong("{} and {} have a link of kind {} already, by line {}: say one line with the rate of both",
                   text_of(one), text_of(other), name_of(kind), known->second);
    graph_.links.push_back({a, b, kind, rate.gbps, rate.gbps, rate.count, rate.origin});
    return {};
  }

  static LinkKind kind_between(const PartName& one, const PartName& other) {
    const auto either = [&](NodeKind kind) { return one.kind == kind || other.kind == kind; };
    const auto is_socket = [](NodeKind kind) { return kind == NodeKind::kPackage || kind == NodeKind::kNumaNode; };
    if (either(NodeKind::kNetwork)) return LinkKind::kNetwork;
    if (is_socket(one.kind) && is_socket(other.kind)) return LinkKind::kSocket;
    const bool are_gpus = one.kind == NodeKind::kGpu && other.kind == NodeKind::kGpu;
    return are_gpus || either(NodeKind::kNvSwitch) ? LinkKind::kNvlink : LinkKind::kPcie;
  }

  // "gpu LIST", "gpu LIST on PARTS at RATE"; the same for NICs.
  Status devices(const Words& words) {
    const NodeKind kind = words[0] == "gpu" ? NodeKind::kGpu : NodeKind::kNic;
    const bool is_linked = words.size() == 6 && words[2] == "on" && words[4] == "at";
    if (words.size() != 2 && !is_linked) return misformed();
    std::vector<PartName> list, places;
    TR_RETURN_IF_ERROR(list_of(words[1], kind, &list));
    for (const PartName& part : list) {
      if (is_there(part)) return wrong("{} is declared twice: name it once", text_of(part));
      uint32_t node = 0;
      TR_RETURN_IF_ERROR(node_of(part, &node));
    }
    if (!is_linked) return {};
    RateWord rate;
    TR_RETURN_IF_ERROR(parts_of(words[3], &places));
    TR_RETURN_IF_ERROR(rate_of(words[5], &rate));
    if (places.size() != 1 && places.size() != list.size())
      return wrong("{} has {} parts for {} of kind {}: name one part for all, or one for each", quoted_word(words[3]),
                   places.size(), list.size(), words[0]);
    for (size_t i = 0; i < list.size(); ++i)
      TR_RETURN_IF_ERROR(
          add_link(list[i], places[places.size() == 1 ? 0 : i], rate.kind.value_or(LinkKind::kPcie), rate));
    return {};
  }

  Status two_parts(const Words& words, PartName* one, PartName* other) const {
    for (const auto& [word, part] : {std::pair(words[1], one), std::pair(words[2], other)}) {
      std::vector<PartName> parts;
      TR_RETURN_IF_ERROR(parts_of(word, &parts));
      if (parts.size() != 1)
        return wrong("{} is {} parts: a link has one at each end", quoted_word(word), parts.size());
      *part = parts[0];
    }
    return {};
  }

  // "link PART PART at RATE"
  Status link(const Words& words) {
    if (words.size() != 5 || words[3] != "at") return misformed();
    PartName one, other;
    RateWord rate;
    TR_RETURN_IF_ERROR(two_parts(words, &one, &other));
    TR_RETURN_IF_ERROR(rate_of(words[4], &rate));
    return add_link(one, other, rate.kind.value_or(kind_between(one, other)), rate);
  }

  // "nvlink PART PART xN", "nvlink PART PART xN genG"; the same for xGMI.
  Status counted_link(const Words& words) {
    if (words.size() != 4 && words.size() != 5) return misformed();
    const bool is_nvlink = words[0] == "nvlink";
    PartName one, other;
    TR_RETURN_IF_ERROR(two_parts(words, &one, &other));
    const auto count = words[3].starts_with('x') ? number_of(words[3].substr(1), kMaxLinkCount) : std::nullopt;
    if (!count || *count == 0)
      return wrong("{} is no number of links: say x1 to x{}", quoted_word(words[3]), kMaxLinkCount);
    auto generation = std::optional(is_nvlink ? kDefaultNvlinkGeneration : kDefaultXgmiGeneration);
    if (words.size() == 5)
      generation = words[4].starts_with("gen") ? number_of(words[4].substr(3), kMaxPartNumber) : std::nullopt;
    if (!generation) return wrong("{} is no generation: say gen and a number, as gen3", quoted_word(words[4]));
    RateWord rate;
    const LinkKind kind = is_nvlink ? LinkKind::kNvlink : LinkKind::kXgmi;
    if (const std::string what = table_rate(kind, *generation, *count, &rate); !what.empty()) return wrong("{}", what);
    return add_link(one, other, kind, rate);
  }

  // "nvswitch [switchN] gpus LIST at RATE", "network [netN] nics LIST at RATE"
  Status joined(const Words& words) {
    const bool is_switch = words[0] == "nvswitch";
    PartName centre{is_switch ? NodeKind::kNvSwitch : NodeKind::kNetwork, 0};
    const size_t at = words.size() == 6 ? 2 : 1;  // of "gpus"
    if (words.size() != at + 4 || words[at] != (is_switch ? "gpus" : "nics") || words[at + 2] != "at")
      return misformed();
    std::vector<PartName> list, named;
    if (at == 2) {
      TR_RETURN_IF_ERROR(parts_of(words[1], &named));
      if (named.size() != 1 || named[0].kind != centre.kind)
        return wrong("{} is no name here: say {} and a number", quoted_word(words[1]), part_prefix(centre.kind));
      centre = named[0];
    }
    RateWord rate;
    TR_RETURN_IF_ERROR(list_of(words[at + 1], is_switch ? NodeKind::kGpu : NodeKind::kNic, &list));
    TR_RETURN_IF_ERROR(rate_of(words[at + 3], &rate));
    for (const PartName& part : list) {
      uint32_t node = 0;
      if (is_switch) TR_RETURN_IF_ERROR(node_of(part, &node));
      TR_RETURN_IF_ERROR(add_link(part, centre, rate.kind.value_or(kind_between(part, centre)), rate));
    }
    return {};
  }

  const std::string& name_;
  LinkGraph& graph_;
  size_t line_ = 0;
  std::string_view form_;  // of the statement that is being read
  std::string host_;       // "host1/"; empty outside of hosts
  uint32_t hosts_ = 0;     // so far
  uint32_t next_gpu_ = 0;  // a number that no GPU has, nor any above
  std::map<std::string, uint32_t> nodes_;
  std::map<std::tuple<uint32_t, uint32_t, LinkKind>, size_t> links_;  // -> line
  std::vector<std::pair<uint32_t, uint32_t>> unnumbered_;             // GPUs: number in the host, node
};

const DescriptionReader::Statement DescriptionReader::kStatements[7] = {
    {"gpu", &DescriptionReader::devices, "gpu LIST\" or \"gpu LIST on PARTS at RATE"},
    {"nic", &DescriptionReader::devices, "nic LIST\" or \"nic LIST on PARTS at RATE"},
    {"link", &DescriptionReader::link, "link PART PART at RATE"},
    {"nvlink", &DescriptionReader::counted_link, "nvlink PART PART xCOUNT\", or with a generation \"... genG"},
    {"xgmi", &DescriptionReader::counted_link, "xgmi PART PART xCOUNT\", or with a generation \"... genG"},
    {"nvswitch", &DescriptionReader::joined,
     "nvswitch gpus LIST at RATE\", or with a name \"nvswitch switchN gpus ..."},
    {"network", &DescriptionReader::joined, "network nics LIST at RATE\", or with a name \"network netN nics ..."},
};

}  // namespace

Status parse_description(std::string_view text, const std::string& name, LinkGraph* graph) {
  if (text.size() > kMaxDescriptionBytes)
    return {trInvalidArgument, fmt::format("{}: more than {} MiB: no description of a machine is so long", name,
                                           kMaxDescriptionBytes >> 20)};
  const std::vector<DescriptionLine> lines = lines_of(text);
  if (lines.empty()) return {trInvalidArgument, fmt::format("{}: nothing is described in it", name)};
  return DescriptionReader(name, graph).run(lines);
}

Status read_description(const std::string& path, LinkGraph* graph) {
  std::string text(kMaxDescriptionBytes + 1, '\0');
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (file.is_open()) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad())
    return {trInvalidArgument, fmt::format("{} cannot be read: {}", path, std::strerror(errno != 0 ? errno : EIO))};
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_description(text, path, graph);
}

}  // namespace treering
