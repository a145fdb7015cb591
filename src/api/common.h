// SPDX-License-Identifier: Apache-2.0
// What the C entry points share: exceptions become codes, arguments become operations.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <new>

#include "api/group.h"
#include "api/handles.h"
#include "progress/engine.h"

namespace treering {

// Runs `body`, which returns a Status; an exception (out of memory) becomes a code.
template <typename Body>
trResult_t guarded(CommunicatorSlot* slot, Body body) {
  try {
    return report(body(), slot);
  } catch (const std::bad_alloc&) {
    return report(out_of_memory(), slot);
  } catch (const std::exception& error) {
    return report({trInternalError, error.what()}, slot);
  }
}

inline Status null_argument(const char* call, const char* name) {
  return {trInvalidArgument, fmt::format("{}: {} is NULL", call, name)};
}

// A failed call that belongs to the open group, if any: without it the others would run with ranks that lack one.
inline Status fail_group(Status status) {
  if (!status.ok() && Group::current().open()) Group::current().add_failure(status);
  return status;
}

// For calls that block on other ranks and cannot be collected.
inline Status refuse_in_group(const char* call) {
  if (!Group::current().open()) return {};
  return fail_group({trInvalidUsage, fmt::format("{} inside a group or a persistent operation; call it after {}", call,
                                                 Group::current().closing_call())});
}

inline StreamId stream_id(trStream_t stream) { return reinterpret_cast<StreamId>(stream); }
inline EventId event_id(trEvent_t event) { return reinterpret_cast<EventId>(event); }

// nullptr for a NULL handle.
std::shared_ptr<Compression> compression_of(trCompression_t handle);

// Checks one collective and runs it, gives it to its stream, or adds it to the open group.
trResult_t submit(trComm_t comm, Operation operation, trStream_t stream);
// The same for an operation whose lanes the communicator has to make; `prepare` fills transfers, or fails.
using PrepareTransfers = std::function<Status(Communicator&, std::vector<Transfer>*)>;
trResult_t submit_prepared(trComm_t comm, Operation operation, trStream_t stream, const PrepareTransfers& prepare);
template <typename Prepare>
trResult_t submit_transfers(trComm_t comm, Operation operation, trStream_t stream, const Prepare& prepare) {
  return submit_prepared(comm, std::move(operation), stream, std::cref(prepare));  // a reference: nothing is allocated
}

}  // namespace treering
