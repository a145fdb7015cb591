// SPDX-License-Identifier: Apache-2.0
// What a communicator tells metrics and traces of itself and of its calls.
#pragma once

#include <memory>
#include <string>

#include "algorithms/collective.h"
#include "communicator/calls/operation.h"
#include "communicator/parts.h"
#include "metrics/call_recorder.h"

namespace treering {

// Makes parts->recorder where the options ask for it. `job` names the communicator for all its ranks; empty: the rank is
// alone. The parts are complete.
void start_recording(CommunicatorParts* parts, const std::string& job);
// There are no more calls.
void end_recording(CommunicatorParts* parts);

// What is no collective of the user's comes after those.
enum OtherKind : size_t { kSendReceive = kCollectiveCount, kExchange, kOfTheLibrary };
inline size_t kind_of(const Operation& operation) {
  if (operation.point_to_point) return kSendReceive;
  if (operation.purpose < Purpose::kBoxes) return static_cast<size_t>(operation.collective);
  return operation.purpose == Purpose::kBoxes ? kExchange : kOfTheLibrary;
}

// A call begins; its first messages are under way, or `is_refused`.
inline void record_begin(const Operation& operation, CallRecorder* recorder) {
  recorder->begin(operation.count >= CallRecorder::kMinLongElements || operation.lanes != nullptr);
}
inline void record_start(const Operation& operation, bool is_refused, const ActiveCall& call, CallRecorder* recorder) {
  CallRecorder::Started started{kind_of(operation), 0, call.operations(), 0, ""};
  if (!is_refused) [[likely]] {
    started.number = call.number();
    started.bytes = operation.pairs ? call.pair_bytes(operation) : call.bytes();
    if (recorder->traces()) started.algorithm = call.algorithm();
    if (call.is_by_mailbox()) recorder->sent_to_each(started.bytes);
  }
  recorder->started(started);
}

}  // namespace treering
