// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA driver that a program with buffers on GPUs calls itself, beside the library: its own
// streams and graphs. Opened at run time (libcuda.so.1, or the file that TREERING_CUDA_DRIVER names), so that the tool
// is built without CUDA and runs without it; for the same reason they are declared here, as the driver exports them.
#pragma once

#include <cstddef>
#include <string>

namespace treering::perf {

using CudaResult = int;    // 0: success
using CudaHandle = void*;  // a context, stream or graph

// name here, name of the symbol (of CUDA 12 and later), parameters
#define TR_PERF_CUDA_FUNCTIONS(f)                                                                                      \
  f(init, "cuInit", (unsigned flags)) f(error_name, "cuGetErrorName", (CudaResult result, const char** text))          \
      f(error_text, "cuGetErrorString", (CudaResult result, const char** text)) f(                                     \
          count, "cuDeviceGetCount", (int* count)) f(device_of, "cuDeviceGet", (int* device, int ordinal))             \
          f(device_name, "cuDeviceGetName", (char* name, int length, int device)) f(                                   \
              device_bus, "cuDeviceGetPCIBusId", (char* id, int length, int device))                                   \
              f(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device)) f(                                 \
                  retain_context, "cuDevicePrimaryCtxRetain", (CudaHandle * context, int device))                      \
                  f(release_context, "cuDevicePrimaryCtxRelease_v2", (int device)) f(                                  \
                      push_context, "cuCtxPushCurrent_v2", (CudaHandle context))                                       \
                      f(pop_context, "cuCtxPopCurrent_v2", (CudaHandle * context)) f(                                  \
                          create_stream, "cuStreamCreate", (CudaHandle * stream, unsigned flags))                      \
                          f(destroy_stream, "cuStreamDestroy_v2", (CudaHandle stream)) f(                              \
                              set_bytes, "cuMemsetD8Async",                                                            \
                              (unsigned long long at, unsigned char value, size_t bytes, CudaHandle stream))           \
                              f(begin_capture, "cuStreamBeginCapture_v2", (CudaHandle stream, int mode))               \
                                  f(end_capture, "cuStreamEndCapture", (CudaHandle stream, CudaHandle * graph)) f(     \
                                      instantiate_graph, "cuGraphInstantiateWithFlags",                                \
                                      (CudaHandle * executable, CudaHandle graph, unsigned long long flags))           \
                                      f(destroy_graph, "cuGraphDestroy", (CudaHandle graph))                           \
                                          f(launch_graph, "cuGraphLaunch", (CudaHandle executable, CudaHandle stream)) \
                                              f(destroy_executable, "cuGraphExecDestroy", (CudaHandle executable))

inline constexpr unsigned kNonBlockingStream = 1;
// Allocations of other threads, whose ranks prepare calls of their own meanwhile, break no capture.
inline constexpr int kCaptureOfThread = 1;

struct CudaDriver {
#define TR_PERF_MEMBER(name, symbol, parameters) CudaResult(*name) parameters = nullptr;
  TR_PERF_CUDA_FUNCTIONS(TR_PERF_MEMBER)
#undef TR_PERF_MEMBER

  // "", or "cuGraphLaunch: CUDA_ERROR_LAUNCH_FAILED (...)"
  std::string error_of(CudaResult result, const char* function) const;
};

// The driver, initialised; nullptr, and why, where there is none. A process must not fork afterwards.
const CudaDriver* open_cuda_driver(std::string* why_not);

}  // namespace treering::perf
