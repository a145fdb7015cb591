// SPDX-License-Identifier: Apache-2.0
// What the tools say about wrong arguments, in one form: "error: OPTION: what is wrong and what it may be", and where
// the options are listed.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "spelling.h"

namespace treering::tools {

inline constexpr int kBadArguments = 2;  // exit status

// `text` begins with an option's long name; the user may have typed the short one.
inline std::string with_short_name(const CLI::App& app, const std::string& text) {
  for (const CLI::Option* option : app.get_options())
    if (!option->get_snames().empty() && text.starts_with("--") && text.starts_with(option->get_name() + ":"))
      return "-" + option->get_snames()[0] + ", " + text;
  return text;
}

// What is wrong, in words. `app` has parsed, and failed with `error`.
inline std::string text_of(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  // An option that there is not comes first: what else is missing may be meant by it.
  const std::vector<std::string> extras = app.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    for (const std::string& word : extras)
      if (const size_t begin = word.find_first_not_of('-'); begin != 0 && begin != std::string::npos) {
        const std::string typed = word.substr(begin, word.find('=') - begin);
        return word + ": there is no such option" + suggestion(typed, names, "--");
      }
    if (!extras.empty()) return "\"" + extras[0] + "\" is one argument too many";
  }
  std::string text = error.what();
  if (const size_t at = text.find(": At Most "); at != std::string::npos)
    return with_short_name(app, text.substr(0, at) + ": is given more than once; give it once");
  if (const size_t at = text.find(": 1 required "); at != std::string::npos)
    text.resize(at), text += ": a value is missing";
  return with_short_name(app, text);
}

// Prints it; returns the exit status: 0 after --help and --version.
inline int refuse(const CLI::App& app, const CLI::ParseError& error, const std::string& text,
                  const std::string& more = "") {
  if (error.get_exit_code() == 0) return app.exit(error);
  std::fprintf(stderr, "error: %s\n%s(%s --help lists the options)\n", text.c_str(), more.c_str(),
               app.get_name().c_str());
  return kBadArguments;
}

}  // namespace treering::tools
