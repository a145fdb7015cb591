#include "shim/stream.h"

#include <fmt/format.h>

#include "shim/entry.h"

namespace treering::nccl {

bool has_devices() {
  static const bool any = [] {
    int count = 0;
    return trDeviceCount(&count) == trSuccess && count > 0;
  }();
  return any;
}

Status classify_stream(const char* function, int device, cudaStream_t stream, Stream* result) {
  *result = Stream();
  if (has_devices()) return status_of(trStreamFromCuda(&result->stream, device, stream));
  // CUDA's constants: 0 and 1 are the legacy default stream, 2 the thread's default stream.
  constexpr uintptr_t kLastDefaultStream = 2;
  if (reinterpret_cast<uintptr_t>(stream) <= kLastDefaultStream) return {};
  return {trInvalidUsage, fmt::format("{}: stream {} is a CUDA stream, but no GPU can be used here: pass NULL",
                                      function, static_cast<void*>(stream))};
}

int current_device() {
  int device = 0;
  return has_devices() && trDeviceCurrent(&device) == trSuccess ? device : 0;
}

Status allocate(size_t bytes, void** memory) {
  return status_of(has_devices() ? trDeviceMemAlloc(memory, bytes, current_device()) : trMemAlloc(memory, bytes));
}

Status release(void* memory) { return status_of(has_devices() ? trDeviceMemFree(memory) : trMemFree(memory)); }

}  // namespace treering::nccl
