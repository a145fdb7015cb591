// SPDX-License-Identifier: Apache-2.0
#include "shim/algorithms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "shim/log.h"
#include "shim/variables.h"

namespace treering::nccl {
namespace {

constexpr std::string_view kFunctions[] = {"allreduce", "reduce", "broadcast", "allgather", "reducescatter",
                                           "alltoall",  "gather", "scatter",   "sendrecv"};
constexpr std::string_view kAlgorithms[] = {"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"};
constexpr std::string_view kProtocols[] = {"ll", "ll128", "simple"};

// What this library calls NCCL's ring and tree; a collective that has none is left to the cost model.
struct Equivalent {
  std::string_view function, algorithm, name;
};
constexpr Equivalent kEquivalents[] = {
    {"allreduce", "ring", "allreduce:ring"},          {"allreduce", "tree", "allreduce:tree"},
    {"broadcast", "ring", "broadcast:chain"},         {"broadcast", "tree", "broadcast:tree"},
    {"allgather", "ring", "allgather:ring"},          {"reduce", "tree", "reduce:tree"},
    {"reducescatter", "ring", "reduce-scatter:ring"},
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool known(std::span<const std::string_view> words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// One part of the variable: whom it is for (empty: everyone) and which words it allows.
struct Part {
  std::string function;
  bool excludes = false;
  std::vector<std::string> words;
};

Status parse(const std::string& variable, const std::string& text, std::span<const std::string_view> words,
             std::vector<Part>* parts) {
  for (std::string section : split_list(lower(text), ';')) {
    Part part;
    if (const size_t colon = section.find(':'); colon != std::string::npos) {
      part.function = section.substr(0, colon);
      section = section.substr(colon + 1);
      if (!known(kFunctions, part.function))
        return {trInvalidArgument, fmt::format("{} is '{}': '{}' is not a function; known are {}", variable, text,
                                               part.function, fmt::join(kFunctions, ", "))};
    }
    part.excludes = !section.empty() && section[0] == '^';
    part.words = split_list(part.excludes ? section.substr(1) : section, ',');
    for (const std::string& word : part.words)
      if (!known(words, word))
        return {trInvalidArgument,
                fmt::format("{} is '{}': '{}' is unknown; known are {}", variable, text, word, fmt::join(words, ", "))};
    parts->push_back(std::move(part));
  }
  return {};
}

}  // namespace

Status translate_algorithms(const std::string& variable, const std::string& text, std::string* list) {
  std::vector<Part> parts;
  TR_RETURN_IF_ERROR(parse(variable, text, kAlgorithms, &parts));
  list->clear();
  for (const Part& part : parts) {
    std::string forced;
    if (!part.excludes && part.words.size() == 1)
      for (const Equivalent& row : kEquivalents)
        if ((part.function.empty() || part.function == row.function) && part.words[0] == row.algorithm)
          forced += fmt::format("{}{}", forced.empty() ? "" : ",", row.name);
    if (forced.empty())
      log_info(kEnv, -1,
               fmt::format("{}: {}{}{} leaves the choice to the cost model", variable, part.function,
                           part.excludes ? " ^" : " ", fmt::join(part.words, ",")));
    else
      *list += (list->empty() ? "" : ",") + forced;
  }
  return {};
}

Status translate_protocols(const std::string& variable, const std::string& text, std::string* list) {
  std::vector<Part> parts;
  TR_RETURN_IF_ERROR(parse(variable, text, kProtocols, &parts));
  list->clear();
  for (const Part& part : parts) {
    if (part.words.empty()) continue;
    if (part.function == "sendrecv") {
      log_info(kEnv, -1, fmt::format("{}: sends and receives always use simple", variable));
      continue;
    }
    // The names are this library's, but for one.
    const std::string function = part.function == "reducescatter" ? "reduce-scatter" : part.function;
    *list += fmt::format("{}{}{}{}{}", list->empty() ? "" : ";", function, function.empty() ? "" : ":",
                         part.excludes ? "^" : "", fmt::join(part.words, ","));
  }
  log_info(kEnv, -1,
           fmt::format("{}: kernels of collectives use {}; on the host the sender of a message chooses", variable,
                       list->empty() ? "what the cost model chooses" : *list));
  return {};
}

}  // namespace treering::nccl
