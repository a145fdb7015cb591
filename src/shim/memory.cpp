// SPDX-License-Identifier: Apache-2.0
// Memory, registrations, and operations made by the user.
#include "shim/comm.h"
#include "shim/entry.h"
#include "shim/log.h"
#include "shim/stream.h"

using treering::Status;
using namespace treering::nccl;

namespace {

Status register_buffer(const char* function, ncclComm_t handle, void* buffer, size_t bytes, void** registration) {
  CommPtr comm;
  TR_RETURN_IF_ERROR(find_comm(function, handle, &comm));
  TR_RETURN_IF_ERROR(comm->expect_awake(function));
  if (buffer == nullptr) return null_argument(function, "buff");
  if (bytes == 0) return {trInvalidArgument, fmt::format("{}: size is 0", function)};
  *registration = nullptr;
  // Memory that cannot be moved (a stack, a file's) works as it is; NCCL has no error for it, but an empty handle.
  if (trCommRegister(comm->get(), buffer, bytes, registration) != trSuccess) {
    *registration = nullptr;
    log_info(kReg, comm->device, fmt::format("{}: {} stays as it is: {}", function, buffer, trGetLastError(nullptr)));
  }
  return {};
}

Status deregister(const char* function, ncclComm_t handle, void* registration) {
  CommPtr comm;
  TR_RETURN_IF_ERROR(find_comm(function, handle, &comm));
  TR_RETURN_IF_ERROR(comm->expect_ready(function));
  return status_of(trCommDeregister(comm->get(), registration));
}

Status make_op(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t handle) {
  constexpr const char* kName = "ncclRedOpCreatePreMulSum";
  if (op == nullptr) return null_argument(kName, "op");
  if (scalar == nullptr) return null_argument(kName, "scalar");
  if (type < 0 || type >= ncclNumTypes)
    return {trInvalidArgument,
            fmt::format("{}: datatype is {}; known are 0 to {}", kName, static_cast<int>(type), ncclNumTypes - 1)};
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    return {trInvalidArgument, fmt::format("{}: residence is {}; give ncclScalarDevice or ncclScalarHostImmediate",
                                           kName, static_cast<int>(residence))};
  CommPtr comm;
  TR_RETURN_IF_ERROR(find_comm(kName, handle, &comm));
  TR_RETURN_IF_ERROR(comm->expect_usable(kName));
  const auto create = residence == ncclScalarDevice ? trRedOpCreatePreMulSumDevice : trRedOpCreatePreMulSum;
  const auto tr_type = static_cast<trDataType_t>(type);
  trRedOp_t made_op = trSum;
  TR_RETURN_IF_ERROR(status_of(create(&made_op, scalar, tr_type, comm->get())));
  auto made = std::make_shared<MadeOp>();
  made->comm = comm->get();
  made->type = tr_type;
  made->op = made_op;
  *op = comm->add_op(std::move(made));
  return {};
}

}  // namespace

extern "C" {

ncclResult_t pncclMemAlloc(void** ptr, size_t size) {
  return entry([&]() -> Status {
    if (ptr == nullptr) return null_argument("ncclMemAlloc", "ptr");
    *ptr = nullptr;
    return size == 0 ? Status() : allocate(size, ptr);
  });
}

ncclResult_t pncclMemFree(void* ptr) {
  return entry([&] { return release(ptr); });
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  return entry(comm, [&]() -> Status {
    if (handle == nullptr) return null_argument("ncclCommRegister", "handle");
    return register_buffer("ncclCommRegister", comm, buffer, size, handle);
  });
}

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
  return entry(comm, [&] { return deregister("ncclCommDeregister", comm, handle); });
}

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* window, int flags) {
  return entry(comm, [&]() -> Status {
    constexpr const char* kName = "ncclCommWindowRegister";
    if (window == nullptr) return null_argument(kName, "win");
    *window = nullptr;
    // The order of one-sided calls concerns nothing here: there are none.
    if ((flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0)
      return {trInvalidArgument, fmt::format("{}: winFlags is {}; give NCCL_WIN_DEFAULT, or NCCL_WIN_COLL_SYMMETRIC "
                                             "and NCCL_WIN_STRICT_ORDERING",
                                             kName, flags)};
    Window made{buffer, nullptr};
    TR_RETURN_IF_ERROR(register_buffer(kName, comm, buffer, size, &made.registration));
    CommPtr owner;
    TR_RETURN_IF_ERROR(find_comm(kName, comm, &owner));
    *window = owner->add_window(made);
    return {};
  });
}

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return entry(comm, [&]() -> Status {
    constexpr const char* kName = "ncclCommWindowDeregister";
    CommPtr owner;
    TR_RETURN_IF_ERROR(find_comm(kName, comm, &owner));
    if (window == nullptr) return {};
    Window found;
    TR_RETURN_IF_ERROR(owner->find_window(kName, window, &found));
    TR_RETURN_IF_ERROR(deregister(kName, comm, found.registration));
    owner->remove_window(window);
    return {};
  });
}

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer) {
  return entry(comm, [&]() -> Status {
    constexpr const char* kName = "ncclWinGetUserPtr";
    if (pointer == nullptr) return null_argument(kName, "outUserPtr");
    *pointer = nullptr;
    CommPtr owner;
    TR_RETURN_IF_ERROR(find_comm(kName, comm, &owner));
    Window found;
    TR_RETURN_IF_ERROR(owner->find_window(kName, window, &found));
    *pointer = found.buffer;
    return {};
  });
}

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  return entry(comm, [&] { return make_op(op, scalar, type, residence, comm); });
}

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  return entry(handle, [&]() -> Status {
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm("ncclRedOpDestroy", handle, &comm));
    return comm->remove_op(op);
  });
}

}  // extern "C"

NCCL_SHIM_EXPORT(MemAlloc);
NCCL_SHIM_EXPORT(MemFree);
NCCL_SHIM_EXPORT(CommRegister);
NCCL_SHIM_EXPORT(CommDeregister);
NCCL_SHIM_EXPORT(CommWindowRegister);
NCCL_SHIM_EXPORT(CommWindowDeregister);
NCCL_SHIM_EXPORT(WinGetUserPtr);
NCCL_SHIM_EXPORT(RedOpCreatePreMulSum);
NCCL_SHIM_EXPORT(RedOpDestroy);
