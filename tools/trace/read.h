// SPDX-License-Identifier: Apache-2.0
// Reads the files that TREERING_TRACE made. What is wrong with one is thrown as std::runtime_error, with its name.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trace.h"

namespace treering::trace {

using Json = nlohmann::json;

// The files of a trace in the directory, by name.
std::vector<std::string> trace_files(const std::string& directory);
// Visits each event of a file. Whether the last line was complete: a process that was killed may leave a part.
bool visit_events(const std::string& file, const std::function<void(Json&&)>& visit);
Trace read_trace(const std::vector<std::string>& files);
// Throws where a rank of a communicator has no file, or two.
void check_complete(const Trace& trace, const std::string& directory);

}  // namespace treering::trace
