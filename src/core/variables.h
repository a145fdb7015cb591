// SPDX-License-Identifier: Apache-2.0
// The environment variables of the library.
#pragma once

#include <string>
#include <vector>

namespace treering {

// What `environment` ("NAME=value", ended by NULL) holds that is almost, but not quite, the name of a variable of the
// library: a line for each, with the name that was probably meant.
std::vector<std::string> misspelt_variables(const char* const* environment);

// Logs them, once in a process.
void warn_of_misspelt_variables();

}  // namespace treering
