// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine through the CUDA driver, and the one function that this shared object exports.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace treering::cuda {
namespace {

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(const Driver& driver, int count) : driver_(driver), devices_(static_cast<size_t>(count)) {}

  int count() const override { return static_cast<int>(devices_.size()); }

  Status open(int ordinal, Device** device) override {
    if (ordinal < 0 || ordinal >= count())
      return {trInvalidArgument, fmt::format("GPU {}: this process sees {}, from 0", ordinal, count())};
    std::lock_guard lock(mutex_);
    auto& slot = devices_[static_cast<size_t>(ordinal)];
    CudaDevice* made = slot.load(std::memory_order_relaxed);
    if (made == nullptr) {
      TR_RETURN_IF_ERROR(CudaDevice::open(driver_, ordinal, &made));
      slot.store(made, std::memory_order_release);
    }
    *device = made;
    return {};
  }

  Status current(int* ordinal) override {
    CUcontext context = nullptr;
    TR_RETURN_IF_ERROR(driver_.status(driver_.cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
    *ordinal = 0;  // what the CUDA runtime takes for a thread that has chosen none
    if (context == nullptr) return {};
    CUdevice handle = 0;
    TR_RETURN_IF_ERROR(driver_.status(driver_.cuCtxGetDevice(&handle), "cuCtxGetDevice"));
    for (int i = 0; i < count(); ++i) {
      CUdevice candidate = 0;
      TR_RETURN_IF_ERROR(driver_.status(driver_.cuDeviceGet(&candidate, i), fmt::format("cuDeviceGet of GPU {}", i)));
      if (candidate == handle) {
        *ordinal = i;
        return {};
      }
    }
    return {trDeviceError, "the current context is of no GPU that this process sees"};
  }

  // Managed memory counts as the host's: every executor can use it where it lies.
  int device_of(const void* address) override {
    const Memory memory = look_up(address);
    return memory.type == CU_MEMORYTYPE_DEVICE && memory.managed == 0 ? memory.ordinal : -1;
  }
  bool is_of_devices(const void* address) override { return look_up(address).type != CUmemorytype{}; }

 private:
  struct Memory {
    CUmemorytype type{};  // 0: CUDA does not know it
    int ordinal = -1;
    unsigned managed = 0;
  };
  Memory look_up(const void* address) const {
    Memory memory;
    CUresult result = ask(address, &memory);
    if (result == CUDA_ERROR_INVALID_CONTEXT) {
      // A thread without a context asks in that of any device that is open; without one no memory was allocated here.
      const auto opened =
          std::find_if(devices_.begin(), devices_.end(), [](const auto& d) { return d.load() != nullptr; });
      if (opened == devices_.end()) return {};
      const ContextGuard guard(driver_, opened->load()->context());
      if (guard.result() != CUDA_SUCCESS) return {};
      result = ask(address, &memory);
    }
    return result == CUDA_SUCCESS ? memory : Memory();
  }
  // All at once: memory that CUDA does not know leaves them as they are, or 0, and is no error.
  CUresult ask(const void* address, Memory* memory) const {
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* values[] = {&memory->type, &memory->ordinal, &memory->managed};
    return driver_.cuPointerGetAttributes(3, which, values, reinterpret_cast<CUdeviceptr>(address));
  }

  const Driver& driver_;
  std::mutex mutex_;  // one thread opens
  std::vector<std::atomic<CudaDevice*>> devices_;
};

// nullptr, with the reason. A failure is tried again by the next call: a driver may be loaded later.
DeviceBackend* open_backend(std::string* why_not) {
  static std::mutex mutex;
  static CudaBackend* made = nullptr;
  std::lock_guard lock(mutex);
  if (made != nullptr) return made;
  const Driver* driver = open_driver(why_not);
  if (driver == nullptr) return nullptr;
  int count = 0;
  if (const CUresult result = driver->cuDeviceGetCount(&count); result != CUDA_SUCCESS)
    *why_not = "cuDeviceGetCount: " + driver->describe(result);
  else if (count == 0)
    *why_not = "the CUDA driver sees no GPU";
  else
    made = new CudaBackend(*driver, count);
  return made;
}

}  // namespace
}  // namespace treering::cuda

extern "C" __attribute__((visibility("default"))) treering::DeviceBackend* treering_open_device_backend(
    uint32_t version, char* why_not, size_t capacity) {
  std::string reason;
  treering::DeviceBackend* backend = nullptr;
  if (version == treering::kDeviceInterface)
    backend = treering::cuda::open_backend(&reason);
  else
    reason = fmt::format("the caller has device interface {}, libtreering-cuda has {}: they are of different builds",
                         version, treering::kDeviceInterface);
  if (why_not != nullptr && capacity > 0) {
    const size_t bytes = std::min(reason.size(), capacity - 1);
    std::memcpy(why_not, reason.data(), bytes);
    why_not[bytes] = '\0';
  }
  return backend;
}
