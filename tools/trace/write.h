// SPDX-License-Identifier: Apache-2.0
// Writes the files of all processes as one, on one clock.
#pragma once

#include <string>

#include "clocks.h"
#include "trace.h"

namespace treering::trace {

// JSON trace events; times are microseconds since the first call. Throws std::runtime_error with the file's name.
void write_joined(const Trace& trace, const Clocks& clocks, const std::string& file);

}  // namespace treering::trace
