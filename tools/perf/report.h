// SPDX-License-Identifier: Apache-2.0
// The table on standard output: the columns of nccl-tests in their order, and behind them what this tool
// adds.
//
// Invariant: every line that is not a row begins with '#', so that a row is a line of fields.
#pragma once

#include <cstdio>
#include <string>

#include "options.h"
#include "results.h"

namespace treering::perf {

void print_header(std::FILE* out, const Options& options, const RunResults& results);
void print_row(std::FILE* out, const Options& options, const Row& row);
void print_footer(std::FILE* out, const RunResults& results);

// `value` in at most `width` characters, with as many digits behind the point (up to 2) as there is room for.
std::string fit(double value, int width);

}  // namespace treering::perf
