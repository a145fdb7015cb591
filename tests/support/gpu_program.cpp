// SPDX-License-Identifier: Apache-2.0
#include "support/gpu_program.h"

#include <cuda.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/open_backend.h"

namespace treering::testing {

struct ProgramGraph {
  CUgraphExec graph;
};

namespace {

void require(CUresult result, const char* function) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(function) + ": error " + std::to_string(result));
}

// The function of that driver, with the version that cuda.h's macros give it.
#define TR_NAME_OF(name) #name
#define TR_SYMBOL(name) TR_NAME_OF(name)
#define TR_FUNCTION(name) reinterpret_cast<decltype(&name)>(cuda::find_function(driver(), TR_SYMBOL(name)))
#define TR_CALL(name, ...) require(TR_FUNCTION(name)(__VA_ARGS__), #name)

void* driver() {
  static void* library = [] {
    const char* chosen = std::getenv("TREERING_CUDA_DRIVER");
    return cuda::open_library(chosen != nullptr ? chosen : "libcuda.so.1");
  }();
  return library;
}

struct Change {
  int* data;
  size_t count;
  void (*change)(int*, size_t);
};

struct Stream {
  int device = 0;                                // also of those that something else made
  std::vector<std::unique_ptr<Change>> changes;  // which a graph may do again
  std::vector<void*> pinned;
  std::vector<CUevent> events;
};
std::mutex mutex;
std::map<DeviceStream, Stream>& streams() {
  static auto* map = new std::map<DeviceStream, Stream>;
  return *map;
}
int device_of(DeviceStream stream) {
  std::lock_guard lock(mutex);
  const auto found = streams().find(stream);
  return found == streams().end() ? 0 : found->second.device;
}

CUcontext context_of(int ordinal) {
  static auto* contexts = new std::map<int, CUcontext>;
  std::lock_guard lock(mutex);
  CUcontext& context = (*contexts)[ordinal];
  if (context != nullptr) return context;
  CUdevice device = 0;
  TR_CALL(cuInit, 0);
  TR_CALL(cuDeviceGet, &device, ordinal);
  TR_CALL(cuDevicePrimaryCtxRetain, &context, device);
  return context;
}

// The primary context of a device is the calling thread's.
class Current {
 public:
  explicit Current(int ordinal) { TR_CALL(cuCtxPushCurrent, context_of(ordinal)); }
  ~Current() {
    CUcontext popped = nullptr;
    (void)TR_FUNCTION(cuCtxPopCurrent)(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

CUstream as_cuda(DeviceStream stream) { return static_cast<CUstream>(stream); }
CUdeviceptr address_of(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

DeviceStream create_stream_of(int device) {
  const Current current(device);
  CUstream made = nullptr;
  TR_CALL(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING);
  std::lock_guard lock(mutex);
  streams()[made].device = device;
  return made;
}

void destroy_stream(DeviceStream stream) {
  synchronize_stream(stream);
  const Current current(device_of(stream));
  TR_CALL(cuStreamDestroy, as_cuda(stream));
  std::lock_guard lock(mutex);
  for (void* address : streams()[stream].pinned) TR_CALL(cuMemFreeHost, address);
  for (CUevent event : streams()[stream].events) TR_CALL(cuEventDestroy, event);
  streams().erase(stream);
}

void synchronize_stream(DeviceStream stream) {
  const Current current(device_of(stream));
  TR_CALL(cuStreamSynchronize, as_cuda(stream));
}

void wait_for_stream(DeviceStream stream, DeviceStream other) {
  CUevent event = nullptr;
  {
    const Current current(device_of(other));
    TR_CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    TR_CALL(cuEventRecord, event, as_cuda(other));
  }
  const Current current(device_of(stream));
  TR_CALL(cuStreamWaitEvent, as_cuda(stream), event, 0);
  std::lock_guard lock(mutex);
  streams()[stream].events.push_back(event);
}

// On a copy in pinned memory, because a program without a compiler for kernels has none of its own.
void change_in_stream(DeviceStream stream, int* data, size_t count, void (*change)(int*, size_t)) {
  const Current current(device_of(stream));
  const size_t bytes = count * sizeof(int);
  void* pinned = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // the stream may be captured, and this is no part of it
  TR_CALL(cuThreadExchangeStreamCaptureMode, &mode);
  TR_CALL(cuMemHostAlloc, &pinned, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  TR_CALL(cuThreadExchangeStreamCaptureMode, &mode);
  auto* work = new Change{static_cast<int*>(pinned), count, change};
  {
    std::lock_guard lock(mutex);
    streams()[stream].pinned.push_back(pinned);
    streams()[stream].changes.emplace_back(work);
  }
  const CUhostFn run = [](void* argument) {
    const auto* given = static_cast<Change*>(argument);
    given->change(given->data, given->count);
  };
  TR_CALL(cuMemcpyAsync, address_of(pinned), address_of(data), bytes, as_cuda(stream));
  TR_CALL(cuLaunchHostFunc, as_cuda(stream), run, work);
  TR_CALL(cuMemcpyAsync, address_of(data), address_of(pinned), bytes, as_cuda(stream));
}

void begin_capture(DeviceStream stream) {
  const Current current(device_of(stream));
  TR_CALL(cuStreamBeginCapture, as_cuda(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

ProgramGraph* end_capture(DeviceStream stream) {
  const Current current(device_of(stream));
  CUgraph graph = nullptr;
  CUgraphExec made = nullptr;
  TR_CALL(cuStreamEndCapture, as_cuda(stream), &graph);
  TR_CALL(cuGraphInstantiate, &made, graph, 0);
  TR_CALL(cuGraphDestroy, graph);
  return new ProgramGraph{made};
}

void launch_graph(ProgramGraph* graph, DeviceStream stream) {
  const Current current(device_of(stream));
  TR_CALL(cuGraphLaunch, graph->graph, as_cuda(stream));
}

void destroy_graph(ProgramGraph* graph) {
  TR_CALL(cuGraphExecDestroy, graph->graph);
  delete graph;
}

bool gpus_are_slow() {
  return std::getenv("TREERING_CUDA_DRIVER") != nullptr || std::getenv("TREERING_GPU_SHORT") != nullptr;
}

}  // namespace treering::testing
