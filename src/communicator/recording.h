// SPDX-License-Identifier: Apache-2.0
// What a communicator tells metrics and traces of itself and of its calls.
#pragma once

#include <memory>
#include <string>

#include "communicator/parts.h"
#include "metrics/call_recorder.h"

namespace treering {

// Makes parts->recorder where the options ask for it. `job` names the communicator for all its ranks; empty: the rank is
// alone. The parts are complete.
void start_recording(CommunicatorParts* parts, const std::string& job);
// There are no more calls.
void end_recording(CommunicatorParts* parts);

void record_begin(const Operation& operation, CommunicatorParts* parts);
void record_start(CommunicatorParts* parts);

}  // namespace treering
