// SPDX-License-Identifier: Apache-2.0
// The results as JSON, schema 3 of nccl-tests, so that what reads its files reads these.
//
// Beyond that schema a row also has algorithm, protocol, transport, channels, the median beside each time (null where
// it is not known) and, with --limit, copy_bw, limit_us and limit_fraction; config has nprocs, memory and buffers.
// `env` holds the TREERING_* variables alone: a result file is passed around, and an environment may hold secrets.
#pragma once

#include <string>

#include "options.h"
#include "results.h"

namespace treering::perf {

// The document as text, ending with a line feed.
std::string json_report(const Options& options, const RunResults& results);

// "2026-01-31 12:00:00", local time.
std::string time_text();

}  // namespace treering::perf
