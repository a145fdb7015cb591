// SPDX-License-Identifier: Apache-2.0
// The last step of a creation: what was measured and how its ranks reach one another decide which schedules it uses.
#pragma once

#include "communicator/parts.h"

namespace treering {

// Completes `machine`, and makes schedules, selection and wait policy. Nothing that follows can lack memory.
Status make_schedules(CommunicatorParts* parts, Machine machine, Plan plan);

}  // namespace treering
