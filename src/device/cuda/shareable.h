// SPDX-License-Identifier: Apache-2.0
// Shareable: memory of a device that is made, mapped and shared in steps (cuMem..., "virtual memory management"), for
// processes between which CUDA's IPC handles do not work. A share is a file descriptor (descriptors.h).
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "core/status.h"
#include "device/cuda/descriptors.h"
#include "device/cuda/driver.h"
#include "device/device.h"

namespace treering::cuda {

class Shareable {
 public:
  Shareable(const Driver& driver, std::string device, CUdevice handle)
      : driver_(driver), device_(std::move(device)), handle_(handle) {}

  // The context must be current in all of these.
  // For kernels of this device, and of those of the process that can reach it.
  Status allocate(size_t bytes, void** address);
  Status export_memory(void* address, DeviceHandle* handle);
  static bool is_handle(const DeviceHandle& handle);
  Status open(const DeviceHandle& handle, void** address);
  // Whether the address is the beginning of such memory, made or opened here.
  bool has(void* address);
  Status release(void* address);

 private:
  struct Mapping {
    CUmemGenericAllocationHandle memory = 0;
    size_t bytes = 0;
    bool imported = false;
    bool offered = false;
    DescriptorTicket ticket{};
  };
  Status map(CUmemGenericAllocationHandle memory, size_t bytes, bool imported, void** address);
  Status allow_access(CUdeviceptr at, size_t bytes, bool imported);
  CUmemAllocationProp properties() const;

  const Driver& driver_;
  const std::string device_;  // for messages
  const CUdevice handle_;
  std::mutex mutex_;
  std::map<void*, Mapping> mappings_;
};

}  // namespace treering::cuda
