// DeviceRank: what a communicator's rank does with its GPU.
//
// Staged: the buffers are copied into pinned memory of the host, the operation runs there as every other (over any
// transport, with ranks that have no GPU), and the results are copied back, all in the order of the CUDA stream and
// without a kernel that spins:
//
//   stream:   copy in | open the gate |  wait for the flag  | copy out | give the memory back
//   engine:   (wait at the gate) ........ operation, raise the flag
//
// By kernels (device_kernels.h), where all ranks have GPUs that reach one another: what does not fit a kernel is staged.
//
// The engine's side is queued when the call is made, so that all ranks run their operations in the same order whatever
// the order in which their streams get there.
#pragma once

#include <memory>
#include <vector>

#include "communicator/device_kernels.h"
#include "communicator/devices.h"
#include "communicator/staging_memory.h"

namespace treering {

class Communicator;

class DeviceRank {
 public:
  // Collective over the communicator; nothing is made for an ordinal of -1.
  static Status create(Communicator* communicator, int ordinal, std::unique_ptr<DeviceRank>* made);
  // Waits until the streams have given all memory back.
  ~DeviceRank();

  Device* device() const { return device_; }
  static bool is_memory_of_device(const void* address);
  // Whether a buffer of the operation is memory of a device.
  bool touches_device(const Operation& operation) const;
  bool touches_host(const Operation& operation) const;

  // To be called for all operations that start together, of all ranks of a thread, before the first is enqueued.
  Status prepare(const Operation& operation);
  // Gives the operation to the stream and returns.
  Status enqueue(Operation operation, DeviceStream stream);
  DeviceStream own_stream() const { return own_stream_; }
  // Waits for the own stream; the communicator's failure, if there is one.
  Status synchronize();
  // Ends what is under way, from any thread.
  void abort();
  // Waits until no kernel is under way.
  void wait_idle();

 private:
  struct StagedCall;

  DeviceRank(Communicator* communicator, Device* device);
  Status enqueue_kernel(Operation operation, DeviceStream stream);
  Status enqueue_staged(Operation operation, DeviceStream stream);
  Status stage(Operation operation, StagedCall* call);
  Status stage_buffers(StagedCall* call);
  Status stage_transfers(StagedCall* call);
  Status queue_on_engine(StagedCall* call);
  static void open_gate(void* call);
  static void start_captured(void* call);
  static void raise_flag(trResult_t result, void* call);
  static void give_back(void* call);

  Communicator* communicator_;
  Device* device_;
  DeviceStream own_stream_ = nullptr;
  StreamId host_stream_ = 0;
  std::shared_ptr<StagingMemory> memory_;
  std::unique_ptr<DeviceKernels> kernels_;             // or nullptr
  std::vector<std::unique_ptr<StagedCall>> captured_;  // in graphs, which may be replayed until the end
};

}  // namespace treering
