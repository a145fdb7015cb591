// SPDX-License-Identifier: Apache-2.0
// The environment variables of the library.
#pragma once

#include <string>
#include <vector>

namespace treering {

// What `environment` ("NAME=value", ended by NULL) holds that is named like a variable of the library, but is none, also not
// of its tests: a line for each, with the name that was probably meant, or else where all are listed.
std::vector<std::string> unknown_variables(const char* const* environment);

// Logs them, once in a process.
void warn_of_unknown_variables();

}  // namespace treering
