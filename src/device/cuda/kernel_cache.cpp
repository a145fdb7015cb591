// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/kernel_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/names.h"
#include "device/cuda/fatbins.h"

namespace treering::cuda {
namespace {

constexpr const char* kSuffixes[kProtocols] = {"ll", "ll128", "simple"};

std::string name_of(DeviceProtocol protocol) {
  const auto index = static_cast<uint32_t>(protocol);
  return index < kProtocols ? kSuffixes[index] : std::to_string(index);
}

}  // namespace

Status KernelCache::find(trDataType_t type, DeviceProtocol protocol, CUfunction* kernel) {
  if (type == trBool) type = trUint8;
  const auto row = static_cast<size_t>(type), column = static_cast<size_t>(protocol);
  if (row >= kTypes || column >= kProtocols)
    return {trInvalidArgument,
            fmt::format("no kernel of data type {} and protocol {}", treering::name_of(type), name_of(protocol))};
  *kernel = kernels_[row][column].load(std::memory_order_acquire);
  if (*kernel != nullptr) return {};
  std::lock_guard lock(mutex_);
  if (kernels_[row][column].load(std::memory_order_relaxed) == nullptr) TR_RETURN_IF_ERROR(load(type, &kernels_[row]));
  *kernel = kernels_[row][column].load(std::memory_order_relaxed);
  return {};
}

Status KernelCache::load(trDataType_t type, Kernels* kernels) {
  const auto all = fatbins();
  const auto fatbin = std::find_if(all.begin(), all.end(), [&](const Fatbin& f) { return f.type == type; });
  if (fatbin == all.end())
    return {trInvalidArgument, fmt::format("no kernels of data type {}", treering::name_of(type))};
  CUmodule module = nullptr;
  TR_RETURN_IF_ERROR(driver_.status(driver_.cuModuleLoadData(&module, fatbin->image),
                                    fmt::format("cuModuleLoadData of the kernels of {}", fatbin->name)));
  std::array<CUfunction, kProtocols> found{};
  for (size_t i = 0; i < kProtocols; ++i) {
    const std::string name = fmt::format("treering_{}_{}", fatbin->name, kSuffixes[i]);
    Status status = driver_.status(driver_.cuModuleGetFunction(&found[i], module, name.c_str()),
                                   fmt::format("cuModuleGetFunction of {}", name));
    // Where the driver loads kernels when they are first used, this is a use: afterwards a launch waits for nothing.
    int threads = 0;
    if (status.ok())
      status = driver_.status(driver_.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, found[i]),
                              fmt::format("cuFuncGetAttribute of {}", name));
    if (status.ok() && threads < static_cast<int>(kMaxKernelThreads))
      status = {trDeviceError,
                fmt::format("{} runs with {} threads at most, not {}", name, threads, kMaxKernelThreads)};
    if (!status.ok()) {
      driver_.cuModuleUnload(module);
      return status;
    }
  }
  for (size_t i = 0; i < kProtocols; ++i) (*kernels)[i].store(found[i], std::memory_order_release);
  return {};
}

}  // namespace treering::cuda
