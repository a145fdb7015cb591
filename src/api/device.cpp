// The C entry points for GPUs.
#include "api/common.h"
#include "communicator/devices.h"

using namespace treering;

extern "C" {

trResult_t trDeviceCount(int* count) {
  return guarded(nullptr, [&]() -> Status {
    if (count == nullptr) return null_argument("trDeviceCount", "count");
    DeviceBackend* backend = device_backend(nullptr);
    *count = backend == nullptr ? 0 : backend->count();
    return {};
  });
}

trResult_t trStreamFromCuda(trStream_t* stream, int device, void* cuda_stream) {
  return guarded(nullptr, [&]() -> Status {
    if (stream == nullptr) return null_argument("trStreamFromCuda", "stream");
    Device* opened = nullptr;
    TR_RETURN_IF_ERROR(open_device(device, &opened));
    *stream = reinterpret_cast<trStream_t>(name_device_stream(device, cuda_stream));
    return {};
  });
}

trResult_t trDeviceMemAlloc(void** ptr, size_t size, int device) {
  return guarded(nullptr, [&]() -> Status {
    if (ptr == nullptr) return null_argument("trDeviceMemAlloc", "ptr");
    if (size == 0) return {trInvalidArgument, "trDeviceMemAlloc: size is 0; give 1 or more bytes"};
    Device* opened = nullptr;
    TR_RETURN_IF_ERROR(open_device(device, &opened));
    return opened->allocate(size, ptr);
  });
}

trResult_t trDeviceMemFree(void* ptr) {
  if (ptr == nullptr) return trSuccess;
  return guarded(nullptr, [&]() -> Status {
    DeviceBackend* backend = device_backend(nullptr);
    const int ordinal = backend == nullptr ? -1 : backend->device_of(ptr);
    if (ordinal < 0) return {trInvalidArgument, fmt::format("trDeviceMemFree: {} is not memory of a GPU", ptr)};
    Device* device = nullptr;
    TR_RETURN_IF_ERROR(open_device(ordinal, &device));
    return device->free(ptr);
  });
}

}  // extern "C"
