// SPDX-License-Identifier: Apache-2.0
// Imports: memory of other processes that a context has opened. An allocation is opened once, however many places in it
// are imported how often, and closed with the last of them.
#pragma once

#include <array>
#include <map>
#include <mutex>

#include "core/status.h"
#include "device/cuda/driver.h"
#include "device/device.h"

namespace treering::cuda {

class Imports {
 public:
  Imports(const Driver& driver, std::string device) : driver_(driver), device_(std::move(device)) {}

  // The context must be current in all of these.
  Status export_memory(void* address, DeviceHandle* handle) const;
  Status open(const DeviceHandle& handle, void** address);
  Status close(void* address);

 private:
  using Key = std::array<char, CU_IPC_HANDLE_SIZE>;
  struct Opened {
    CUdeviceptr base = 0;
    size_t count = 0;
  };
  struct Imported {
    Key key;
    size_t count = 0;
  };

  const Driver& driver_;
  const std::string device_;  // for messages
  std::mutex mutex_;
  std::map<Key, Opened> opened_;
  std::map<void*, Imported> imported_;  // by address
};

}  // namespace treering::cuda
