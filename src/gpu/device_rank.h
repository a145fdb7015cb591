// SPDX-License-Identifier: Apache-2.0
// DeviceRank: what a communicator's rank does with its GPU.
//
// By kernels (device_kernels.h), where all ranks have GPUs that reach one another; what does not fit a kernel, and
// everything where they do not, through pinned memory of the host (staged_path.h).
#pragma once

#include <memory>
#include <span>

#include "communicator/communicator.h"
#include "gpu/device_kernels.h"
#include "gpu/devices.h"
#include "gpu/staged_path.h"

namespace treering {

class DeviceRank final : public GpuSide {
 public:
  // Collective over the communicator; nothing is made for an ordinal of -1.
  static Status create(Communicator* communicator, int ordinal, std::unique_ptr<DeviceRank>* made);
  // Waits until the streams have given all memory back.
  ~DeviceRank();

  Device* device() const { return device_; }
  static bool is_memory_of_device(const void* address);
  // Whether a buffer of the operation, or its scalar, is memory of a device.
  bool touches_device(const Operation& operation) const;
  // Whether a buffer is memory of the host.
  bool touches_host(const Operation& operation) const;

  // Whether the operation runs as a kernel; the same on all ranks.
  bool runs_kernel(const Operation& operation) const;
  // nullptr where everything is staged.
  DeviceKernels* kernels() const { return kernels_.get(); }

  // To be called for all operations that start together, of all ranks of a thread, before the first is enqueued.
  Status prepare(const Operation& operation);
  // Gives the operations, those of a group or one, to the stream in their order, and returns.
  Status enqueue(std::span<const Operation> operations, DeviceStream stream);
  // An error where one is captured into a graph and the other is not.
  Status check_captures(DeviceStream before, DeviceStream after);
  // What follows in `after` comes behind what is in `before`.
  Status order(DeviceStream before, DeviceStream after);
  DeviceStream own_stream() const { return own_stream_; }
  // Waits for the own stream; the communicator's failure, if there is one.
  Status synchronize();
  void abort() override;
  void find_failure() override;
  bool is_needed() const override;
  // Waits until no kernel is under way.
  void wait_idle();
  // Before the communicator is destroyed: waits until what was given to streams has ended, as long as nothing has
  // failed and the deadline allows.
  void finish();

 private:
  DeviceRank(Communicator* communicator, Device* device);
  Status stage(const Operation& operation, DeviceStream stream);
  // Whether streams hold anything of it.
  bool is_busy() const;
  // Whether kernels can read the operation's scalar where it lies.
  bool reads_scale_of(const Operation& operation) const;

  Communicator* communicator_;
  Device* device_;
  DeviceStream own_stream_ = nullptr;
  DeviceEvent before_ = nullptr;  // of order()
  StagedPath staged_;
  std::unique_ptr<DeviceKernels> kernels_;  // or nullptr
};

// That of a communicator, or nullptr.
inline DeviceRank* device_of(const Communicator& communicator) {
  return static_cast<DeviceRank*>(communicator.gpu_side());  // it takes no other one
}

}  // namespace treering
