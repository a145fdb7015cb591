// SPDX-License-Identifier: Apache-2.0
// A rank's status (executor/rank_status.h) as it travels to a rank that cannot read it in memory.
#pragma once

#include <string>

#include "executor/rank_status.h"

namespace treering {

std::string pack_status(const RankStatus& status);
// False when the bytes are none.
bool unpack_status(const std::string& bytes, RankStatusSnapshot* snapshot);

}  // namespace treering
