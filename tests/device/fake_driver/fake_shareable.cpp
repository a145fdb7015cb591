// SPDX-License-Identifier: Apache-2.0
// The fake driver's memory in steps: files without names, mapped where an address was reserved. It can be used when
// access was given, and not before.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/fake_driver/fake_state.h"

using namespace treering::cuda;

namespace {

constexpr size_t kUnit = 64 << 10;
struct Mapped {
  size_t bytes;
  bool has_memory;
};
std::mutex mutex;
std::map<CUmemGenericAllocationHandle, int> files;
std::map<CUdeviceptr, Mapped> reserved;
CUmemGenericAllocationHandle next_handle = 1000;

CUresult keep(int file, CUmemGenericAllocationHandle* handle) {
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(mutex);
  files[*handle = next_handle++] = file;
  ++fake().shareable;
  return CUDA_SUCCESS;
}

bool is_right(const CUmemAllocationProp* properties) {
  return properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && is_device_handle(properties->location.id);
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* unit, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  TR_ENTER(cuMemGetAllocationGranularity);
  *unit = kUnit;
  return is_right(properties) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long) {
  TR_ENTER(cuMemCreate);
  if (bytes == 0 || bytes % kUnit != 0 || !is_right(properties)) return CUDA_ERROR_INVALID_VALUE;
  const int file = memfd_create("fake shareable memory", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) return close(file), CUDA_ERROR_OUT_OF_MEMORY;
  return keep(file, handle);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  TR_ENTER(cuMemRelease);
  std::lock_guard lock(mutex);
  const auto found = files.find(handle);
  if (found == files.end()) return CUDA_ERROR_INVALID_VALUE;
  close(found->second);
  files.erase(found);
  --fake().shareable;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  TR_ENTER(cuMemAddressReserve);
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED || bytes % kUnit != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(mutex);
  reserved[*address = reinterpret_cast<CUdeviceptr>(at)] = {bytes, false};
  ++fake().reservations;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  TR_ENTER(cuMemAddressFree);
  std::lock_guard lock(mutex);
  const auto found = reserved.find(address);
  if (found == reserved.end() || found->second.bytes != bytes || found->second.has_memory)
    return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(address), bytes);
  reserved.erase(found);
  --fake().reservations;
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  TR_ENTER_CONTEXT(cuMemMap);
  std::lock_guard lock(mutex);
  const auto found = reserved.find(address);
  const auto file = files.find(handle);
  if (found == reserved.end() || file == files.end() || found->second.bytes != bytes || offset != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file->second, 0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  found->second.has_memory = true;
  ++fake().mappings;
  set_mapped_range(address, bytes, current_device());
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  TR_ENTER(cuMemUnmap);
  std::lock_guard lock(mutex);
  const auto found = reserved.find(address);
  if (found == reserved.end() || !found->second.has_memory) return CUDA_ERROR_INVALID_VALUE;
  set_mapped_range(address, bytes, -1);
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  found->second.has_memory = false;
  --fake().mappings;
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  TR_ENTER(cuMemSetAccess);
  for (size_t i = 0; i < count; ++i)
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device_handle(access[i].location.id) ||
        access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
  return mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  TR_ENTER(cuMemExportToShareableHandle);
  std::lock_guard lock(mutex);
  const auto file = files.find(handle);
  if (file == files.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<int*>(shared) = dup(file->second);
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared,
                                        CUmemAllocationHandleType type) {
  TR_ENTER(cuMemImportFromShareableHandle);
  struct stat about {};
  const int file = static_cast<int>(reinterpret_cast<uintptr_t>(shared));
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(file, &about) != 0) return CUDA_ERROR_INVALID_VALUE;
  return keep(dup(file), handle);
}

}  // extern "C"
