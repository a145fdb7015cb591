// SPDX-License-Identifier: Apache-2.0
// GpuMachine: ranks on one GPU, each with a stream of its own, through device/device.h alone.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"
#include "device/machine.h"

namespace treering::cuda {

class GpuMachine final : public Machine {
 public:
  explicit GpuMachine(Device* device);

  Device& device() { return device_; }
  // The stream of a rank.
  DeviceStream stream(size_t rank);

  void* allocate(size_t bytes) override;
  void free(void* address) override;
  void* allocate_shared(size_t bytes) override;
  void free_shared(void* address) override;
  void copy(void* to, const void* from, size_t bytes) override;
  bool uses_host_memory() const override { return false; }
  uint32_t threads(uint32_t wanted) const override { return wanted; }
  std::string launch(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                     uint32_t delays, const std::function<void()>& meanwhile) override;

  // Launches all calls `times` times, one behind the other in each rank's stream.
  std::string start(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol, uint32_t threads,
                    uint32_t times);
  // Waits for `ranks` streams. When the deadline passes, ends the kernels by the calls' statuses.
  std::string finish(const std::vector<DeviceCall>& calls);

 private:
  Device& device_;
  std::vector<DeviceStream> streams_;
  DeviceStream copies_ = nullptr;
  DeviceEvent probe_ = nullptr;
};

// Throws std::runtime_error with the message, or std::bad_alloc where memory is short.
void require(const Status& status);

// The first GPU, or nullptr with the reason. A process has one machine.
GpuMachine* gpu_machine(std::string* why_not);

// Whether the machine is the tests' driver without a GPU: slow, so less is done.
bool is_fake(GpuMachine* machine);
// Whether less is to be done: there, and under tools that make a GPU slow (TREERING_GPU_SHORT).
bool is_short(GpuMachine* machine);

}  // namespace treering::cuda
