// SPDX-License-Identifier: Apache-2.0
// The environment variables of the library.
#pragma once

#include <string>
#include <vector>

namespace treering {

struct UnknownVariable {
  std::string text;
  bool is_near = false;  // to a name that is known: it was probably meant
};

// What `environment` ("NAME=value", ended by NULL) holds that is named like a variable of the library, but is none.
std::vector<UnknownVariable> unknown_variables(const char* const* environment);

// Logs them, once in a process: near ones as warnings. Others may be a build's or a module's, such as TREERING_ROOT.
void tell_unknown_variables();

}  // namespace treering
