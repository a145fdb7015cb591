// SPDX-License-Identifier: Apache-2.0
// The fake driver's memory: of files without names, so that other processes can open it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/fake_driver/fake_state.h"

using namespace treering::cuda;

namespace {

enum class Kind { kDevice, kHost, kOpened, kMapped };
struct Range {
  Kind kind;
  size_t bytes;
  int device;
  int file;
};
struct Handle {
  char mark[8];
  int process, file, device;
  size_t bytes;
};
constexpr char kMark[8] = "fakeIPC";

std::mutex mutex;
std::map<CUdeviceptr, Range> ranges;
size_t used = 0;

// The range that has the address; the mutex is held.
std::map<CUdeviceptr, Range>::iterator find(CUdeviceptr at) {
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return ranges.end();
  --after;
  return at < after->first + after->second.bytes ? after : ranges.end();
}

void* map_file(int file, size_t bytes) { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); }

CUresult remove(CUdeviceptr at, Kind kind, int* live) {
  std::lock_guard lock(mutex);
  const auto range = ranges.find(at);
  if (range == ranges.end() || range->second.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  if (kind != Kind::kHost && range->second.device != current_device()) return CUDA_ERROR_INVALID_CONTEXT;
  munmap(reinterpret_cast<void*>(at), range->second.bytes);
  if (range->second.file >= 0) close(range->second.file);
  if (kind == Kind::kDevice) used -= range->second.bytes;
  ranges.erase(range);
  --*live;
  return CUDA_SUCCESS;
}

}  // namespace

namespace treering::cuda {

bool is_usable(CUdeviceptr at, size_t bytes) {
  std::lock_guard lock(mutex);
  const auto range = find(at);
  // Memory that is no device's is the host's; a copy takes any of that.
  if (range == ranges.end()) return true;
  return at + bytes <= range->first + range->second.bytes;
}

bool is_of_host(CUdeviceptr at) {
  std::lock_guard lock(mutex);
  const auto range = find(at);
  return range == ranges.end() || range->second.kind == Kind::kHost;
}

void set_mapped_range(CUdeviceptr at, size_t bytes, int device) {
  std::lock_guard lock(mutex);
  if (device < 0)
    ranges.erase(at);
  else
    ranges[at] = {Kind::kMapped, bytes, device, -1};
}

}  // namespace treering::cuda

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  TR_ENTER_CONTEXT(cuMemAlloc);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex);
  if (bytes > fake().memory_bytes || used > fake().memory_bytes - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("fake device memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  void* at = map_file(file, bytes);
  if (at == MAP_FAILED) return close(file), CUDA_ERROR_OUT_OF_MEMORY;
  // What an allocation holds is undefined; big ones are left as they are, for time.
  if (bytes <= 1 << 20) std::memset(at, 0xA5, bytes);
  *address = reinterpret_cast<CUdeviceptr>(at);
  ranges[*address] = {Kind::kDevice, bytes, current_device(), file};
  used += bytes;
  ++fake().allocations;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  TR_ENTER_CONTEXT(cuMemFree);
  drain_streams(current_device());
  return remove(address, Kind::kDevice, &fake().allocations);
}
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  TR_ENTER_CONTEXT(cuMemGetAddressRange);
  std::lock_guard lock(mutex);
  const auto range = find(address);
  if (range == ranges.end() || range->second.kind == Kind::kHost) return CUDA_ERROR_NOT_FOUND;
  *base = range->first;
  *bytes = range->second.bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  TR_ENTER_CONTEXT(cuMemHostAlloc);
  if ((flags & CU_MEMHOSTALLOC_DEVICEMAP) == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(at, 0xA5, bytes);
  std::lock_guard lock(mutex);
  ranges[reinterpret_cast<CUdeviceptr>(at)] = {Kind::kHost, bytes, current_device(), -1};
  ++fake().host_allocations;
  *address = at;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* address) {
  TR_ENTER_CONTEXT(cuMemFreeHost);
  drain_streams(-1);
  return remove(reinterpret_cast<CUdeviceptr>(address), Kind::kHost, &fake().host_allocations);
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* host, unsigned) {
  TR_ENTER_CONTEXT(cuMemHostGetDevicePointer);
  *address = reinterpret_cast<CUdeviceptr>(host) + (fake().unified_addresses ? 0 : 4096);
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr address) {
  TR_ENTER(cuPointerGetAttributes);
  if (fake().pointers_need_context && current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex);
  const auto range = find(address);
  const bool managed = address != 0 && address == reinterpret_cast<CUdeviceptr>(fake().managed);
  unsigned type = 0;
  int device = -2;
  if (range != ranges.end()) {
    type = range->second.kind == Kind::kHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    device = range->second.device;
  } else if (managed) {
    type = CU_MEMORYTYPE_DEVICE;
    device = 0;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *static_cast<unsigned*>(values[i]) = type;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(values[i]) = device;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED) *static_cast<unsigned*>(values[i]) = managed;
  }
  return CUDA_SUCCESS;
}
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  TR_ENTER_CONTEXT(cuIpcGetMemHandle);
  std::lock_guard lock(mutex);
  const auto range = ranges.find(address);
  if (range == ranges.end() || range->second.kind != Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  Handle made{};
  std::memcpy(made.mark, kMark, sizeof kMark);
  made.process = getpid();
  made.file = range->second.file;
  made.device = range->second.device;
  made.bytes = range->second.bytes;
  static_assert(sizeof made <= sizeof handle->reserved);
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->reserved, &made, sizeof made);
  return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  TR_ENTER_CONTEXT(cuIpcOpenMemHandle);
  Handle given;
  std::memcpy(&given, handle.reserved, sizeof given);
  if (std::memcmp(given.mark, kMark, sizeof kMark) != 0 || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  if (given.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", given.process, given.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return CUDA_ERROR_INVALID_HANDLE;
  void* at = map_file(file, given.bytes);
  close(file);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  std::lock_guard lock(mutex);
  ranges[*address] = {Kind::kOpened, given.bytes, current_device(), -1};
  ++fake().opened_handles;
  return CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  TR_ENTER_CONTEXT(cuIpcCloseMemHandle);
  drain_streams(current_device());
  return remove(address, Kind::kOpened, &fake().opened_handles);
}

}  // extern "C"
