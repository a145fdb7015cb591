// SPDX-License-Identifier: Apache-2.0
// Machine: where the ranks of a test run: memory that their kernels use, and launches of all of them at once.
//
// CpuMachine runs the device code on threads, with memory of this process; tests/gpu has one of a real GPU.
#pragma once

#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu_kernels.h"
#include "device/work.h"

namespace treering::cuda {

class Machine {
 public:
  virtual ~Machine() = default;
  // Zeroed, at a multiple of 256. Throws std::bad_alloc where there is not as much.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* address) = 0;
  // Memory that both kernels and this process use.
  virtual void* allocate_shared(size_t bytes) = 0;
  virtual void free_shared(void* address) = 0;
  // Between any two places; has ended on return.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // Whether kernels use any memory of this process.
  virtual bool uses_host_memory() const = 0;
  // Threads of a block, of about so many on a GPU.
  virtual uint32_t threads(uint32_t wanted) const = 0;
  // Runs a kernel for every call, all at the same time, and `meanwhile` beside them; waits until they have ended.
  // Empty, or why that failed.
  virtual std::string launch(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol,
                             uint32_t threads, uint32_t delays, const std::function<void()>& meanwhile) = 0;
};

class CpuMachine final : public Machine {
 public:
  void* allocate(size_t bytes) override {
    void* made = ::operator new(bytes, std::align_val_t(256));
    std::memset(made, 0, bytes);
    return made;
  }
  void free(void* address) override { ::operator delete(address, std::align_val_t(256)); }
  void* allocate_shared(size_t bytes) override { return allocate(bytes); }
  void free_shared(void* address) override { free(address); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  bool uses_host_memory() const override { return true; }
  uint32_t threads(uint32_t) const override { return 2; }
  std::string launch(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                     uint32_t delays, const std::function<void()>& meanwhile) override {
    std::vector<std::thread> gpus;
    for (const DeviceCall& call : calls)
      gpus.emplace_back([&, delays] { launch_on_cpu(launch_of(call), type, protocol, threads, delays); });
    if (meanwhile) meanwhile();
    for (std::thread& gpu : gpus) gpu.join();
    return {};
  }
};

// Memory of a machine.
class Allocation {
 public:
  Allocation() = default;
  Allocation(Machine* machine, size_t bytes, bool shared = false)
      : machine_(machine), shared_(shared), at_(shared ? machine->allocate_shared(bytes) : machine->allocate(bytes)) {}
  Allocation(Allocation&& other) noexcept { *this = std::move(other); }
  Allocation& operator=(Allocation&& other) noexcept {
    std::swap(machine_, other.machine_);
    std::swap(shared_, other.shared_);
    std::swap(at_, other.at_);
    return *this;
  }
  ~Allocation() {
    if (at_ == nullptr) return;
    if (shared_)
      machine_->free_shared(at_);
    else
      machine_->free(at_);
  }
  std::byte* data() const { return static_cast<std::byte*>(at_); }

 private:
  Machine* machine_ = nullptr;
  bool shared_ = false;
  void* at_ = nullptr;
};

}  // namespace treering::cuda
