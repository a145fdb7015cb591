// SPDX-License-Identifier: Apache-2.0
// Print: a schedule as sentences that a person can follow, and as the compact program that is stored.
#pragma once

#include <string>

#include "algorithms/schedule.h"

namespace treering {

// One line per executed step: "rank 1  step 3: receive chunk 2 from 0, reduce with input, send to 2".
std::string program_text(const Schedule& schedule);

// The Blocks and their Steps as they are stored, not expanded.
std::string compact_text(const Schedule& schedule);

}  // namespace treering
