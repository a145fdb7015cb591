// SPDX-License-Identifier: Apache-2.0
// What the entry points share: a Status becomes a result, a message and a line of the log; nothing throws across them;
// every function is exported under its two names.
#pragma once

#include <fmt/format.h>

#include <new>
#include <string>

#include "core/status.h"
#include "shim/include/nccl.h"

// The weak name of a function that was defined as pnccl<name> in the same file.
#define NCCL_SHIM_EXPORT(name) \
  extern "C" decltype(nccl##name) nccl##name __attribute__((weak, alias("pnccl" #name), visibility("default")))

namespace treering::nccl {

// Only results that NCCL has: a deadline that passed is another rank that did not answer.
ncclResult_t result_of(trResult_t code);
trResult_t code_of(ncclResult_t result);

// Remembers the message, also with the communicator if there is one, logs it, and gives the result.
ncclResult_t report(const Status& status, ncclComm_t comm = nullptr);
// A copy of the process's last error.
std::string last_error();

// The failure of a call of the C API that the calling thread made.
inline Status status_of(trResult_t result) {
  return result == trSuccess ? Status() : Status(result, trGetLastError(nullptr));
}

// Runs `body`, which returns a Status; `comm` is the handle that the caller gave.
template <typename Body>
ncclResult_t entry(ncclComm_t comm, Body body) {
  try {
    return report(body(), comm);
  } catch (const std::bad_alloc&) {
    return report(out_of_memory(), comm);
  } catch (const std::exception& error) {
    return report({trInternalError, error.what()}, comm);
  }
}
template <typename Body>
ncclResult_t entry(Body body) {
  return entry(nullptr, body);
}

inline Status null_argument(const char* function, const char* name) {
  return {trInvalidArgument, fmt::format("{}: {} is NULL", function, name)};
}

}  // namespace treering::nccl
