// SPDX-License-Identifier: Apache-2.0
// What is asked of a communicator, and how it ends.
#include "shim/entry.h"
#include "shim/group.h"
#include "shim/log.h"
#include "shim/stream.h"

using treering::Status;
using namespace treering::nccl;

namespace {

Status ask(const char* function, ncclComm_t handle, const char* argument, int* result, int Comm::*field) {
  if (result == nullptr) return null_argument(function, argument);
  CommPtr comm;
  TR_RETURN_IF_ERROR(find_comm(function, handle, &comm));
  TR_RETURN_IF_ERROR(comm->expect_ready(function));
  *result = (*comm).*field;
  return {};
}

ncclResult_t end(const char* function, ncclComm_t handle, bool abort) {
  if (handle == nullptr) return ncclSuccess;
  return entry([&]() -> Status {
    CommPtr comm;
    TR_RETURN_IF_ERROR(remove_comm(function, handle, &comm));
    log_info(kInit, comm->device,
             fmt::format("comm {} rank {} nranks {} cudaDev {} - {} COMPLETE", static_cast<void*>(handle), comm->rank,
                         comm->ranks, comm->device, abort ? "Abort" : "Destroy"));
    Group& group = Group::current();
    if (!abort || !group.open()) return comm->release(abort);
    group.batch().aborted.push_back(comm);
    return comm->begin_abort();
  });
}

}  // namespace

extern "C" {

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return entry(comm, [&] { return ask("ncclCommCount", comm, "count", count, &Comm::ranks); });
}

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return entry(comm, [&] { return ask("ncclCommUserRank", comm, "rank", rank, &Comm::rank); });
}

ncclResult_t pncclCommCuDevice(const ncclComm_t handle, int* device) {
  return entry(handle, [&]() -> Status {
    if (device == nullptr) return null_argument("ncclCommCuDevice", "device");
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm("ncclCommCuDevice", handle, &comm));
    TR_RETURN_IF_ERROR(comm->expect_ready("ncclCommCuDevice"));
    *device = comm->device;
    return {};
  });
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  return entry(handle, [&]() -> Status {
    if (result == nullptr) return null_argument("ncclCommGetAsyncError", "asyncError");
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm("ncclCommGetAsyncError", handle, &comm));
    const Status state = comm->async_state();
    if (!state.message().empty()) comm->set_last_error(state.message());
    *result = result_of(state.code());
    return {};
  });
}

ncclResult_t pncclCommFinalize(ncclComm_t handle) {
  return entry(handle, [&]() -> Status {
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm("ncclCommFinalize", handle, &comm));
    TR_RETURN_IF_ERROR(comm->expect_ready("ncclCommFinalize"));
    Change change;
    change.comms = {comm};
    change.work = [comm] { return comm->finalize(); };
    return submit(std::move(change));
  });
}

ncclResult_t pncclCommRevoke(ncclComm_t handle, int flags) {
  return entry(handle, [&]() -> Status {
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm("ncclCommRevoke", handle, &comm));
    if (flags != NCCL_REVOKE_DEFAULT)
      return {trInvalidArgument, fmt::format("ncclCommRevoke: revokeFlags is {}; give NCCL_REVOKE_DEFAULT", flags)};
    // Not when it is ready: it ends what is under way.
    if (comm->get() == nullptr) TR_RETURN_IF_ERROR(comm->expect_ready("ncclCommRevoke"));
    return comm->revoke();
  });
}

ncclResult_t pncclCommDestroy(ncclComm_t comm) { return end("ncclCommDestroy", comm, /*abort=*/false); }
ncclResult_t pncclCommAbort(ncclComm_t comm) { return end("ncclCommAbort", comm, /*abort=*/true); }

ncclResult_t pncclCommSuspend(ncclComm_t handle, int flags) {
  return entry(handle, [&]() -> Status {
    constexpr const char* kName = "ncclCommSuspend";
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm(kName, handle, &comm));
    if (flags != NCCL_SUSPEND_MEM)
      return {trInvalidArgument, fmt::format("{}: flags is {}; give NCCL_SUSPEND_MEM", kName, flags)};
    TR_RETURN_IF_ERROR(comm->expect_usable(kName));
    comm->suspend();
    log_info(kInit, comm->device, fmt::format("{}: comm {}: no memory is released", kName, static_cast<void*>(handle)));
    return {};
  });
}

ncclResult_t pncclCommResume(ncclComm_t handle) {
  return entry(handle, [&]() -> Status {
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm("ncclCommResume", handle, &comm));
    TR_RETURN_IF_ERROR(comm->expect_ready("ncclCommResume"));
    return comm->resume();
  });
}

ncclResult_t pncclCommMemStats(ncclComm_t handle, ncclCommMemStat_t stat, uint64_t* value) {
  return entry(handle, [&]() -> Status {
    constexpr const char* kName = "ncclCommMemStats";
    if (value == nullptr) return null_argument(kName, "value");
    *value = 0;
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm(kName, handle, &comm));
    TR_RETURN_IF_ERROR(comm->expect_ready(kName));
    switch (stat) {
      case ncclStatGpuMemSuspended:
        *value = comm->suspended() ? 1 : 0;
        return {};
      case ncclStatGpuMemSuspend:  // none can be released by a suspension
        return {};
      case ncclStatGpuMemPersist:
      case ncclStatGpuMemTotal:
        if (!has_devices()) return {};
        // 0 would be wrong there, and the C API does not tell what a communicator's kernels have taken.
        return {trInvalidUsage, fmt::format("{}: the memory of a communicator on a GPU is not counted", kName)};
    }
    return {trInvalidArgument, fmt::format("{}: stat is {}; known are 0 to {}", kName, static_cast<int>(stat),
                                           static_cast<int>(ncclStatGpuMemTotal))};
  });
}

}  // extern "C"

NCCL_SHIM_EXPORT(CommCount);
NCCL_SHIM_EXPORT(CommUserRank);
NCCL_SHIM_EXPORT(CommCuDevice);
NCCL_SHIM_EXPORT(CommGetAsyncError);
NCCL_SHIM_EXPORT(CommFinalize);
NCCL_SHIM_EXPORT(CommRevoke);
NCCL_SHIM_EXPORT(CommSuspend);
NCCL_SHIM_EXPORT(CommResume);
NCCL_SHIM_EXPORT(CommMemStats);
NCCL_SHIM_EXPORT(CommDestroy);
NCCL_SHIM_EXPORT(CommAbort);
