// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/imports.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cstring>

namespace treering::cuda {
namespace {

// What a DeviceHandle holds.
struct Exported {
  uint64_t magic;
  uint64_t process;  // that exported it: a random number, because process ids repeat between containers
  uint64_t offset;   // of the address in its allocation, which is what is opened
  CUipcMemHandle allocation;
};
static_assert(sizeof(Exported) <= sizeof(DeviceHandle));
constexpr uint64_t kMagic = 0x7472'6375'6461'0001;

uint64_t this_process() {
  static const uint64_t number = [] {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = 0;
    return random;
  }();
  return number;
}

}  // namespace

Status Imports::export_memory(void* address, DeviceHandle* handle) const {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  TR_RETURN_IF_ERROR(driver_.status(driver_.cuMemGetAddressRange(&base, &bytes, at),
                                    fmt::format("cuMemGetAddressRange of {} on {}", address, device_)));
  Exported exported{};
  exported.magic = kMagic;
  exported.process = this_process();
  exported.offset = at - base;
  TR_RETURN_IF_ERROR(driver_.status(driver_.cuIpcGetMemHandle(&exported.allocation, base),
                                    fmt::format("cuIpcGetMemHandle of {} on {}", address, device_)));
  *handle = DeviceHandle{};
  std::memcpy(handle->bytes.data(), &exported, sizeof exported);
  return {};
}

Status Imports::open(const DeviceHandle& handle, void** address) {
  Exported exported;
  std::memcpy(&exported, handle.bytes.data(), sizeof exported);
  if (exported.magic != kMagic) return {trInvalidArgument, "this is no handle of device memory"};
  if (exported.process == this_process() && exported.process != 0)
    return {trInvalidUsage, "the memory is of this process: use its address, and reach() from another device"};
  Key key;
  std::memcpy(key.data(), exported.allocation.reserved, key.size());
  std::lock_guard lock(mutex_);
  Opened& opened = opened_[key];
  if (opened.count == 0) {
    const CUresult result =
        driver_.cuIpcOpenMemHandle(&opened.base, exported.allocation, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
      opened_.erase(key);
      return driver_.status(result, fmt::format("cuIpcOpenMemHandle on {}", device_));
    }
  }
  ++opened.count;
  *address = reinterpret_cast<void*>(opened.base + exported.offset);
  Imported& imported = imported_[*address];
  imported.key = key;
  ++imported.count;
  return {};
}

Status Imports::close(void* address) {
  std::lock_guard lock(mutex_);
  const auto imported = imported_.find(address);
  if (imported == imported_.end())
    return {trInvalidArgument, fmt::format("{} is not imported on {}", address, device_)};
  const auto opened = opened_.find(imported->second.key);
  if (--imported->second.count == 0) imported_.erase(imported);
  if (--opened->second.count > 0) return {};
  const CUdeviceptr base = opened->second.base;
  opened_.erase(opened);
  return driver_.status(driver_.cuIpcCloseMemHandle(base), fmt::format("cuIpcCloseMemHandle on {}", device_));
}

}  // namespace treering::cuda
