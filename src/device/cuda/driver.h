// SPDX-License-Identifier: Apache-2.0
// Driver: the functions of the CUDA driver, found in libcuda.so.1 at run time.
//
// A process has one; TREERING_CUDA_DRIVER names another shared object to take them from (tests have one without a GPU).
// Members have the names of cuda.h, which maps some of them to versions: the one that was compiled against is looked
// up.
#pragma once

#include <cuda.h>

#include <string>

#include "core/status.h"
#include "device/cuda/driver_name.h"

#define TR_DRIVER_FUNCTIONS(f)                                                                                      \
  f(cuInit) f(cuDriverGetVersion) f(cuGetErrorName) f(cuGetErrorString) f(cuDeviceGetCount) f(cuDeviceGet)          \
      f(cuDeviceGetName) f(cuDeviceGetUuid) f(cuDeviceGetPCIBusId) f(cuDeviceGetAttribute) f(cuDeviceCanAccessPeer) \
          f(cuDeviceGetP2PAttribute) f(cuDevicePrimaryCtxRetain) f(cuDevicePrimaryCtxRelease) f(cuCtxGetCurrent)    \
              f(cuCtxGetDevice) f(cuCtxPushCurrent) f(cuCtxPopCurrent) f(cuCtxEnablePeerAccess)                     \
                  f(cuThreadExchangeStreamCaptureMode) f(cuPointerGetAttributes) f(cuMemAlloc) f(cuMemFree)         \
                      f(cuMemGetAddressRange) f(cuMemHostAlloc) f(cuMemFreeHost) f(cuMemHostGetDevicePointer)       \
                          f(cuMemsetD8Async) f(cuMemcpyAsync) f(cuIpcGetMemHandle) f(cuIpcOpenMemHandle)            \
                              f(cuIpcCloseMemHandle) f(cuStreamCreate) f(cuStreamDestroy) f(cuStreamSynchronize)    \
                                  f(cuStreamQuery) f(cuStreamWaitEvent) f(cuStreamWaitValue32)                      \
                                      f(cuStreamGetCaptureInfo) f(cuEventCreate) f(cuEventDestroy) f(cuEventRecord) \
                                          f(cuEventRecordWithFlags) f(cuLaunchHostFunc) f(cuLaunchKernel)           \
                                              f(cuModuleLoadData) f(cuModuleUnload) f(cuModuleGetFunction)          \
                                                  f(cuFuncGetAttribute) f(cuMemCreate) f(cuMemRelease)              \
                                                      f(cuMemAddressReserve) f(cuMemAddressFree) f(cuMemMap)        \
                                                          f(cuMemUnmap) f(cuMemSetAccess)                           \
                                                              f(cuMemGetAllocationGranularity)                      \
                                                                  f(cuMemExportToShareableHandle)                   \
                                                                      f(cuMemImportFromShareableHandle)

static_assert(CUDA_VERSION >= 12000, "CUDA 12 or later is needed: earlier ones wait for values in another way");

namespace treering::cuda {

struct Driver {
#define TR_MEMBER(name) decltype(&::name) name = nullptr;
  TR_DRIVER_FUNCTIONS(TR_MEMBER)
#undef TR_MEMBER

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string describe(CUresult result) const;
  // What the call of a function came to; `what`: the function and what it was for.
  Status status(CUresult result, const std::string& what) const;
};

// Opens the driver and initialises it. nullptr, with the reason, where there is none or it is too old for the kernels.
const Driver* open_driver(std::string* why_not);

}  // namespace treering::cuda
