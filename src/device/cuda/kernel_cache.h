// SPDX-License-Identifier: Apache-2.0
// KernelCache: the kernels of one context. The module of a type is loaded when a kernel of it is first asked for, with
// all its kernels, and stays; from then on find() takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "core/status.h"
#include "device/cuda/driver.h"
#include "device/work.h"

namespace treering::cuda {

inline constexpr uint32_t kMaxKernelThreads = 512;  // __launch_bounds__ in kernel.cu

class KernelCache {
 public:
  explicit KernelCache(const Driver& driver) : driver_(driver) {}

  // The context must be current. trBool has the kernels of uint8.
  Status find(trDataType_t type, DeviceProtocol protocol, CUfunction* kernel);

 private:
  static constexpr size_t kTypes = 32;  // above every trDataType_t
  using Kernels = std::array<std::atomic<CUfunction>, kProtocols>;

  Status load(trDataType_t type, Kernels* kernels);

  const Driver& driver_;
  std::mutex mutex_;  // one thread loads
  std::array<Kernels, kTypes> kernels_{};
};

}  // namespace treering::cuda
