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

// Where parts->recorder is there: a call begins, and its first messages are under way.
inline void record_begin(const Operation& operation, CommunicatorParts* parts) {
  const bool is_long = operation.count >= CallRecorder::kMinLongElements || operation.lanes != nullptr;
  const uint64_t number = operation.point_to_point ? 0 : parts->call->operations() + 1;
  parts->recorder->begin(kind_of(operation), is_long, number);
}
inline void record_start(const Operation& operation, CommunicatorParts* parts) {
  const ActiveCall& call = *parts->call;
  CallRecorder& recorder = *parts->recorder;
  recorder.started(operation.pairs ? call.pair_bytes(operation) : call.bytes(),
                   recorder.traces() ? call.algorithm() : "");
  if (call.is_by_mailbox()) recorder.sent_to_each(call.bytes());
}

}  // namespace treering
