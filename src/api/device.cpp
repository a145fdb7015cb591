// SPDX-License-Identifier: Apache-2.0
// The C entry points for GPUs.
#include "api/common.h"
#include "gpu/devices.h"

using namespace treering;

extern "C" {

trResult_t trDeviceCount(int* count) {
  return guarded(nullptr, [&]() -> Status {
    if (count == nullptr) return null_argument("trDeviceCount", "count");
    return count_devices(count);
  });
}

trResult_t trDeviceCurrent(int* device) {
  return guarded(nullptr, [&]() -> Status {
    if (device == nullptr) return null_argument("trDeviceCurrent", "device");
    std::string why_not;
    DeviceBackend* backend = device_backend(&why_not);
    if (backend == nullptr) return {trDeviceError, "no GPU can be used: " + why_not};
    return backend->current(device);
  });
}

trResult_t trDeviceMemCopy(void* to, const void* from, size_t size, trStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    if (size > 0 && to == nullptr) return null_argument("trDeviceMemCopy", "to");
    if (size > 0 && from == nullptr) return null_argument("trDeviceMemCopy", "from");
    int ordinal = 0;
    DeviceStream cuda = nullptr;
    Device* device = nullptr;
    TR_RETURN_IF_ERROR(find_device_stream(stream_id(stream), &ordinal, &cuda));
    TR_RETURN_IF_ERROR(open_device(ordinal, &device));
    TR_RETURN_IF_ERROR(device->copy(to, from, size, cuda));
    return device->synchronize(cuda);
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
