// SPDX-License-Identifier: Apache-2.0
// The results as comma-separated values: a line of names, then a line for each row. The columns are always the same,
// and a field is empty where nothing was measured. Times are in us, bandwidths in 1e9 bytes a second.
#pragma once

#include <string>

#include "options.h"
#include "results.h"

namespace treering::perf {

// Both end with a line feed.
std::string csv_header();
std::string csv_line(const Options& options, const Row& row);

}  // namespace treering::perf
