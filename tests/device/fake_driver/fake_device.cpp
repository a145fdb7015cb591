// SPDX-License-Identifier: Apache-2.0
// The fake driver's devices, contexts and errors.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include "device/fake_driver/fake_state.h"

using namespace treering::cuda;

namespace {

thread_local std::vector<CUcontext> context_stack;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr int kMaxDevices = 16;
CUctx_st primary[kMaxDevices];
// Ordinals are not handles.
constexpr CUdevice kFirstHandle = 100;

bool is_device(CUdevice device) { return device >= kFirstHandle && device < kFirstHandle + fake().devices; }

}  // namespace

namespace treering::cuda {

FakeCuda& fake() {
  static auto* made = [] {
    auto* first = new FakeCuda();
    if (const char* devices = std::getenv("FAKE_CUDA_DEVICES")) first->devices = std::atoi(devices);
    return first;
  }();
  return *made;
}

CUresult enter(const char* function_and_version) {
  // Tests know functions by the names of cuda.h, whose macros add versions.
  std::string function = function_and_version;
  if (const size_t at = function.rfind("_v"); at != std::string::npos) function.resize(at);
  FakeCuda& f = fake();
  std::lock_guard lock(f.mutex);
  ++f.calls[function];
  const auto failing = f.failing.find(function);
  if (failing == f.failing.end()) return CUDA_SUCCESS;
  const CUresult result = failing->second;
  f.failing.erase(failing);
  return result;
}

bool is_device_handle(CUdevice device) { return is_device(device); }

int current_device() {
  return context_stack.empty() || context_stack.back() == nullptr ? -1 : context_stack.back()->device;
}

}  // namespace treering::cuda

extern "C" {

FakeCuda* fake_cuda() { return &fake(); }

CUresult cuInit(unsigned) {
  TR_ENTER(cuInit);
  for (int i = 0; i < kMaxDevices; ++i) primary[i].device = i;
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  TR_ENTER(cuDriverGetVersion);
  *version = fake().driver_version;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  switch (error) {
#define TR_ERROR(name) \
  case name:           \
    return *text = #name, CUDA_SUCCESS
    TR_ERROR(CUDA_ERROR_OUT_OF_MEMORY);
    TR_ERROR(CUDA_ERROR_NO_DEVICE);
    TR_ERROR(CUDA_ERROR_INVALID_VALUE);
    TR_ERROR(CUDA_ERROR_INVALID_CONTEXT);
    TR_ERROR(CUDA_ERROR_INVALID_HANDLE);
    TR_ERROR(CUDA_ERROR_INVALID_IMAGE);
    TR_ERROR(CUDA_ERROR_NOT_FOUND);
    TR_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    TR_ERROR(CUDA_ERROR_CAPTURED_EVENT);
    TR_ERROR(CUDA_ERROR_NOT_SUPPORTED);
    TR_ERROR(CUDA_ERROR_LAUNCH_FAILED);
    TR_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
#undef TR_ERROR
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "as the fake driver says";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  TR_ENTER(cuDeviceGetCount);
  *count = fake().devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  TR_ENTER(cuDeviceGet);
  *device = kFirstHandle + ordinal;
  return ordinal >= 0 && ordinal < fake().devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  TR_ENTER(cuDeviceGetName);
  std::snprintf(name, static_cast<size_t>(length), "Fake GPU %d", device - kFirstHandle);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  TR_ENTER(cuDeviceTotalMem);
  *bytes = fake().memory_bytes;
  return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  TR_ENTER(cuDeviceGetUuid);
  std::memset(uuid->bytes, device, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  TR_ENTER(cuDeviceGetPCIBusId);
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", device - kFirstHandle + 1);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  TR_ENTER(cuDeviceGetAttribute);
  if (!is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return *value = 108, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return *value = fake().capability / 10, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return *value = fake().capability % 10, CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  TR_ENTER(cuDeviceCanAccessPeer);
  *can = fake().peer_access;
  return is_device(device) && is_device(peer) && device != peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// NVLink wherever peers can be accessed.
CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) {
  TR_ENTER(cuDeviceGetP2PAttribute);
  if (attribute != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
  *value = fake().peer_access;
  return is_device(device) && is_device(peer) && device != peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  TR_ENTER(cuDevicePrimaryCtxRetain);
  if (!is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  *context = &primary[device - kFirstHandle];
  std::lock_guard lock(fake().mutex);
  ++fake().contexts;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  TR_ENTER(cuDevicePrimaryCtxRelease);
  if (!is_device(device)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(fake().mutex);
  --fake().contexts;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  TR_ENTER(cuCtxGetCurrent);
  *context = context_stack.empty() ? nullptr : context_stack.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  TR_ENTER_CONTEXT(cuCtxGetDevice);
  *device = kFirstHandle + current_device();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  TR_ENTER(cuCtxPushCurrent);
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  TR_ENTER_CONTEXT(cuCtxPopCurrent);
  *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
  TR_ENTER_CONTEXT(cuCtxEnablePeerAccess);
  static std::set<std::pair<int, int>> enabled;
  std::lock_guard lock(fake().mutex);
  if (!enabled.insert({current_device(), peer->device}).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  TR_ENTER(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}

}  // extern "C"
