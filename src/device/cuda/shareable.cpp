// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/shareable.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace treering::cuda {
namespace {

// What a DeviceHandle holds.
struct Exported {
  uint64_t magic;
  uint64_t bytes;
  DescriptorTicket ticket;
};
static_assert(sizeof(Exported) <= sizeof(DeviceHandle));
constexpr uint64_t kMagic = 0x7472'6375'6461'0002;

CUdeviceptr pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

CUmemAllocationProp Shareable::properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = handle_;
  return properties;
}

Status Shareable::allocate(size_t wanted, void** address) {
  const CUmemAllocationProp properties = this->properties();
  size_t unit = 0;
  TR_RETURN_IF_ERROR(
      driver_.status(driver_.cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                     fmt::format("cuMemGetAllocationGranularity on {}", device_)));
  const size_t bytes = (wanted + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle memory = 0;
  TR_RETURN_IF_ERROR(driver_.status(driver_.cuMemCreate(&memory, bytes, &properties, 0),
                                    fmt::format("cuMemCreate of {} bytes on {}", bytes, device_)));
  return map(memory, bytes, false, address);
}

// The memory is released where that fails.
Status Shareable::map(CUmemGenericAllocationHandle memory, size_t bytes, bool imported, void** address) {
  CUdeviceptr at = 0;
  Status status = driver_.status(driver_.cuMemAddressReserve(&at, bytes, 0, 0, 0),
                                 fmt::format("cuMemAddressReserve of {} bytes on {}", bytes, device_));
  const bool reserved = status.ok();
  if (status.ok())
    status = driver_.status(driver_.cuMemMap(at, bytes, 0, memory, 0), fmt::format("cuMemMap on {}", device_));
  const bool mapped = status.ok();
  if (status.ok()) status = allow_access(at, bytes, imported);
  if (status.ok()) {
    *address = reinterpret_cast<void*>(at);
    std::lock_guard lock(mutex_);
    mappings_[*address] = {memory, bytes, imported, false, {}};
    return {};
  }
  // The first failure is the one to tell.
  if (mapped) driver_.cuMemUnmap(at, bytes);
  if (reserved) driver_.cuMemAddressFree(at, bytes);
  driver_.cuMemRelease(memory);
  return status;
}

Status Shareable::allow_access(CUdeviceptr at, size_t bytes, bool imported) {
  std::vector<CUmemAccessDesc> access(1);
  access[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access[0].location.id = handle_;
  access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  int count = 0;
  if (!imported && driver_.cuDeviceGetCount(&count) == CUDA_SUCCESS)
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      CUdevice peer = 0;
      int can = 0;
      if (driver_.cuDeviceGet(&peer, ordinal) != CUDA_SUCCESS || peer == handle_ ||
          driver_.cuDeviceCanAccessPeer(&can, peer, handle_) != CUDA_SUCCESS || can == 0)
        continue;
      access.push_back(access[0]);
      access.back().location.id = peer;
    }
  return driver_.status(driver_.cuMemSetAccess(at, bytes, access.data(), access.size()),
                        fmt::format("cuMemSetAccess on {}", device_));
}

bool Shareable::has(void* address) {
  std::lock_guard lock(mutex_);
  return mappings_.count(address) != 0;
}

Status Shareable::export_memory(void* address, DeviceHandle* handle) {
  std::lock_guard lock(mutex_);
  Mapping& mapping = mappings_.at(address);
  if (!mapping.offered) {
    int descriptor = -1;
    TR_RETURN_IF_ERROR(driver_.status(
        driver_.cuMemExportToShareableHandle(&descriptor, mapping.memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        fmt::format("cuMemExportToShareableHandle on {}", device_)));
    if (Status status = offer_descriptor(descriptor, &mapping.ticket); !status.ok()) {
      close(descriptor);
      return status;
    }
    mapping.offered = true;
  }
  const Exported exported{kMagic, mapping.bytes, mapping.ticket};
  *handle = DeviceHandle{};
  std::memcpy(handle->bytes.data(), &exported, sizeof exported);
  return {};
}

bool Shareable::is_handle(const DeviceHandle& handle) {
  uint64_t magic = 0;
  std::memcpy(&magic, handle.bytes.data(), sizeof magic);
  return magic == kMagic;
}

Status Shareable::open(const DeviceHandle& handle, void** address) {
  Exported exported;
  std::memcpy(&exported, handle.bytes.data(), sizeof exported);
  int descriptor = -1;
  TR_RETURN_IF_ERROR(fetch_descriptor(exported.ticket, &descriptor));
  CUmemGenericAllocationHandle memory = 0;
  const CUresult result = driver_.cuMemImportFromShareableHandle(
      &memory, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(descriptor);
  TR_RETURN_IF_ERROR(driver_.status(result, fmt::format("cuMemImportFromShareableHandle on {}", device_)));
  return map(memory, exported.bytes, true, address);
}

Status Shareable::release(void* address) {
  Mapping mapping;
  {
    std::lock_guard lock(mutex_);
    const auto found = mappings_.find(address);
    mapping = found->second;
    mappings_.erase(found);
  }
  if (mapping.offered) forget_descriptor(mapping.ticket);
  const CUresult unmapped = driver_.cuMemUnmap(pointer(address), mapping.bytes);
  const CUresult released = driver_.cuMemRelease(mapping.memory);
  const CUresult freed = driver_.cuMemAddressFree(pointer(address), mapping.bytes);
  TR_RETURN_IF_ERROR(driver_.status(unmapped, fmt::format("cuMemUnmap of {} on {}", address, device_)));
  TR_RETURN_IF_ERROR(driver_.status(released, fmt::format("cuMemRelease of {} on {}", address, device_)));
  return driver_.status(freed, fmt::format("cuMemAddressFree of {} on {}", address, device_));
}

}  // namespace treering::cuda
