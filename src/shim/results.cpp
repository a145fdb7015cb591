// SPDX-License-Identifier: Apache-2.0
// Results and messages.
#include <atomic>
#include <mutex>

#include "shim/comm.h"
#include "shim/entry.h"
#include "shim/log.h"

namespace treering::nccl {
namespace {

// One for the process, as with NCCL: a program may ask in another thread than the one that failed.
std::mutex message_mutex;
std::string& message() {
  static auto* text = new std::string;
  return *text;
}

}  // namespace

ncclResult_t result_of(trResult_t code) {
  switch (code) {
    case trSuccess:
      return ncclSuccess;
    case trDeviceError:
      return ncclUnhandledCudaError;
    case trSystemError:
      return ncclSystemError;
    case trInvalidArgument:
      return ncclInvalidArgument;
    case trInvalidUsage:
      return ncclInvalidUsage;
    case trRemoteError:
    case trTimeout:
      return ncclRemoteError;
    case trInProgress:
      return ncclInProgress;
    case trInternalError:
    case trResultForceInt:
      break;
  }
  return ncclInternalError;
}

ncclResult_t report(const Status& status, ncclComm_t handle) {
  if (!status.ok() && status.code() != trInProgress) {
    {
      std::lock_guard lock(message_mutex);
      message() = status.message();
    }
    CommPtr comm;
    if (handle != nullptr && find_comm("", handle, &comm).ok()) comm->set_last_error(status.message());
    log_warn(status.message());
  }
  return result_of(status.code());
}

std::string last_error() {
  std::lock_guard lock(message_mutex);
  return message();
}

}  // namespace treering::nccl

using namespace treering::nccl;

extern "C" {

const char* pncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "a CUDA call failed (ncclGetLastError has the reason)";
    case ncclSystemError:
      return "a system call failed (ncclGetLastError has the reason)";
    case ncclInternalError:
      return "internal error of the library (ncclGetLastError has the reason)";
    case ncclInvalidArgument:
      return "invalid argument (ncclGetLastError has the reason)";
    case ncclInvalidUsage:
      return "invalid usage (ncclGetLastError has the reason)";
    case ncclRemoteError:
      return "another rank died, was aborted or failed (ncclGetLastError has the reason)";
    case ncclInProgress:
      return "operation in progress";
    case ncclNumResults:
      break;
  }
  return "unknown result code";
}

const char* pncclGetLastError(ncclComm_t handle) {
  thread_local std::string text;
  CommPtr comm;
  text = handle != nullptr && find_comm("ncclGetLastError", handle, &comm).ok() ? comm->last_error() : "";
  if (text.empty()) text = last_error();
  return text.c_str();
}

ncclResult_t pncclGetVersion(int* version) {
  return entry([&]() -> treering::Status {
    if (version == nullptr) return null_argument("ncclGetVersion", "version");
    *version = NCCL_VERSION_CODE;
    return {};
  });
}

void pncclResetDebugInit(void) { reset_log(); }

}  // extern "C"

NCCL_SHIM_EXPORT(GetErrorString);
NCCL_SHIM_EXPORT(GetLastError);
NCCL_SHIM_EXPORT(GetVersion);
NCCL_SHIM_EXPORT(ResetDebugInit);
