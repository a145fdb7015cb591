// SPDX-License-Identifier: Apache-2.0
#include "transport/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <sstream>
#include <stdexcept>

#include "core/spelling.h"
#include "transport/cma/transport.h"
#include "transport/memory/transport.h"
#include "transport/module.h"
#include "transport/tcp/transport.h"
#include "transport/ucx/wire.h"
#include "transport/verbs/locked_memory.h"

namespace treering {
namespace {

LockedMemory locked_by_verbs(const TransportSetup& setup, uint32_t rails) {
  return verbs::plan_locked_memory(setup, rails, SIZE_MAX);
}
std::unique_ptr<Transport> open_verbs(const TransportSetup& setup) { return open_module("verbs", setup); }
std::unique_ptr<Transport> open_ucx(const TransportSetup& setup) { return open_module("ucx", setup); }

// clang-format off
std::vector<TransportRow>& table() {
  static auto* rows = new std::vector<TransportRow>{
      //                                                        cheap  maps   fetches heads named  registers
      {"in-process",    "in-process", 2,        Scope::kProcess,  true,  true,  true,  true,  false, false, nullptr,   open_in_process},
      {"shared-memory", "shm",        2,        Scope::kHost,     true,  true,  false, true,  false, false, nullptr,   open_shared_memory},
      {"cma",           "cma",        2,        Scope::kHost,     false, false, true,  true,  false, false, nullptr,   open_cma},
      {"verbs",         "verbs",      verbs::kWireVersion, Scope::kAnywhere, false, false, false, false, true,  true,  nullptr,   open_verbs, locked_by_verbs, verbs::kMaxRails},
      {"ucx",           "ucx",        ucx::kWireVersion,   Scope::kAnywhere, false, false, false, false, true,  false, nullptr,   open_ucx},
      {"tcp",           "tcp",        kTcpMark, Scope::kAnywhere, true,  false, false, false, false, false, check_tcp, open_tcp},
  };
  return *rows;
}
// clang-format on

std::string advice() {
  std::string names, example;
  for (const TransportRow& row : table()) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return fmt::format(
      "give a list of {}, or with one ^ in front those to leave out (for example ^cma or ^cma,tcp); shm is short for "
      "shared-memory",
      names);
}

std::string_view without_spaces(std::string_view word) {
  const auto first = word.find_first_not_of(' ');
  if (first == word.npos) return {};
  return word.substr(first, word.find_last_not_of(' ') - first + 1);
}

// "; did you mean cma?", or "".
std::string suggestion(std::string_view word) {
  if (word.starts_with('^')) return "; ^ stands once, in front of the whole list";
  std::vector<std::string_view> names;
  for (const TransportRow& row : table()) names.insert(names.end(), {row.name, row.short_name});
  const size_t found = nearest(word, names);
  return found == names.size() ? "" : fmt::format("; did you mean {}?", table()[found / 2].name);
}

TransportSet all() { return (TransportSet{1} << table().size()) - 1; }

}  // namespace

const std::vector<TransportRow>& transports() { return table(); }

void add_transport(const TransportRow& row) {
  if (table().size() == kMaxTransports) throw std::length_error("too many transports");
  table().push_back(row);
}

TransportSet transports_with(bool TransportRow::*property) {
  TransportSet set = 0;
  for (size_t i = 0; i < table().size(); ++i) set |= TransportSet{table()[i].*property} << i;
  return set;
}

TransportSet transports_of(Scope scope) {
  TransportSet set = 0;
  for (size_t i = 0; i < table().size(); ++i) set |= TransportSet{table()[i].scope == scope} << i;
  return set;
}

TransportSet preferred(TransportSet set) { return set & (~set + 1); }

const TransportRow& row_of(TransportSet one) { return table()[static_cast<size_t>(std::countr_zero(one))]; }

Status parse_transports(const std::string& text, TransportSet* allowed) {
  *allowed = all() & ~transports_with(&TransportRow::only_named);
  if (text.empty()) return {};
  const bool exclude = without_spaces(text).starts_with('^');
  TransportSet named = 0;
  std::istringstream words(exclude ? text.substr(text.find('^') + 1) : text);
  for (std::string item; std::getline(words, item, ',');) {
    const std::string_view word = without_spaces(item);
    const auto found = std::find_if(table().begin(), table().end(), [&](const TransportRow& row) {
      return word == row.name || word == row.short_name;
    });
    if (found == table().end())
      return {trInvalidArgument, fmt::format("TREERING_TRANSPORTS or config->transports is '{}': '{}' is unknown{}; {}",
                                             text, word, suggestion(word), advice())};
    named |= TransportSet{1} << (found - table().begin());
  }
  *allowed = exclude ? *allowed & ~named : named;
  if (named == 0 || *allowed == 0)
    return {trInvalidArgument, fmt::format("TREERING_TRANSPORTS or config->transports is '{}': {}; {}", text,
                                           named == 0 ? "a name is missing" : "nothing is left to use", advice())};
  return {};
}

std::string transports_text(TransportSet set) {
  std::string text;
  for (size_t i = 0; i < table().size(); ++i)
    if ((set >> i & 1) != 0) (text += text.empty() ? "" : "+") += table()[i].short_name;
  return text.empty() ? "none" : text;
}

std::string wire_versions(TransportSet set) {
  std::string text;
  for (size_t i = 0; i < table().size(); ++i)
    if ((set >> i & 1) != 0)
      text += fmt::format("{}{} {:x}", text.empty() ? "" : ", ", table()[i].name, table()[i].wire_version);
  return text;
}

}  // namespace treering
