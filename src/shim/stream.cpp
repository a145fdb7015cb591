// SPDX-License-Identifier: Apache-2.0
#include "shim/stream.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "shim/entry.h"

namespace treering::nccl {

namespace {

struct Devices {
  bool any = false;
  Status status;  // of those that are there and cannot be used
};

const Devices& devices() {
  static const auto* found = [] {
    auto* made = new Devices;
    const char* chosen = std::getenv("TREERING_DEVICE");
    if (chosen != nullptr && std::strcmp(chosen, "-1") == 0) return made;
    int count = 0;
    made->status = status_of(trDeviceCount(&count));
    made->any = made->status.ok() && count > 0;
    return made;
  }();
  return *found;
}

}  // namespace

bool has_devices() { return devices().any; }

Status check_devices(const char* function) {
  const Status& status = devices().status;
  if (status.ok()) return status;
  return {status.code(), fmt::format("{}: {}. With TREERING_DEVICE=-1 communicators are of memory of the host",
                                     function, status.message())};
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
