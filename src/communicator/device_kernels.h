// DeviceKernels: a communicator's operations as kernels of its rank's GPU, over DeviceLinks.
//
//   launch():  choose -> compiled programs in device memory (cached) -> bind -> kernel on the caller's stream
//
// One kernel at a time uses the links: a launch waits for the last one, on whatever stream, and so do the launches of graphs,
// by nodes for events. A kernel waits for its peers as long as the host lets it: DeviceMonitor looks after all that are under way.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <tuple>

#include "communicator/device_links.h"
#include "communicator/operation.h"
#include "communicator/staging_memory.h"
#include "executor/cuda/choose.h"
#include "executor/execution.h"

namespace treering {

class DeviceKernels {
 public:
  static Status create(Communicator* communicator, Device* device, std::unique_ptr<DeviceLinks> links,
                       std::shared_ptr<StagingMemory> memory, DeviceStream own_stream,
                       std::unique_ptr<DeviceKernels>* made);
  // Ends what is under way.
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // Whether the operation runs as a kernel; the same on all ranks. Sends and receives always do: their sizes are known to
  // two ranks alone.
  bool takes(const Operation& operation);
  // What a collective without further ado does; false where it is staged.
  bool predict(Collective collective, size_t bytes, size_t element_bytes, cuda::DeviceChoice* choice);
  double predict_transfer(size_t bytes) const { return cuda::transfer_us(links_->link(), bytes, links_->channels()); }
  // Everything that a launch needs and that may wait for the device: before kernels run that wait for this rank.
  Status prepare(const Operation& operation);
  Status launch(const Operation& operation, DeviceStream stream);
  // Ends every wait of every kernel, from any thread.
  void abort();
  // By the monitor, while something is under way: fails the communicator when there is a reason to. False when nothing is.
  bool look();
  // Makes what a kernel has found a failure of the communicator; from any thread.
  void find_failure();
  bool is_idle() const;
  bool wait_until_idle(std::chrono::milliseconds timeout) const;
  uint32_t channels() const { return links_->channels(); }

 private:
  struct Compiled {
    Program program;
    void* image = nullptr;    // in device memory
    void* scratch = nullptr;  // likewise
    size_t scratch_bytes = 0;
  };
  using Key = std::tuple<const Algorithm*, cuda::DeviceProtocol, uint32_t, uint32_t, uint32_t>;

  DeviceKernels(Communicator* communicator, Device* device, std::unique_ptr<DeviceLinks> links,
                std::shared_ptr<StagingMemory> memory);
  struct Resolved {
    const cuda::DeviceChoice* choice;
    Compiled* compiled;
    trDataType_t type;  // of the kernel
    size_t element_bytes;
  };
  Status resolve(const Operation& operation, Resolved* resolved);
  Status compile(const cuda::DeviceChoice& choice, uint32_t root, Compiled** compiled);
  Status launch_collective(const Operation& operation, DeviceStream stream, cuda::DeviceCall* call);
  Status launch_transfers(const Operation& operation, DeviceStream stream, cuda::DeviceCall* call);
  Status start(const cuda::DeviceCall& call, trDataType_t type, cuda::DeviceProtocol protocol, uint32_t threads,
               DeviceStream stream);
  Status start_captured(const cuda::DeviceCall& call, trDataType_t type, cuda::DeviceProtocol protocol,
                        uint32_t threads, DeviceStream stream, uint64_t capture);
  struct Chosen {
    cuda::DeviceChoice choice;
    bool staged = false;  // through the host it takes less time
  };
  const Chosen& choose(Collective collective, size_t bytes, size_t element_bytes);
  bool is_staged_better(Collective collective, size_t bytes, double kernel_us) const;
  // Sum over all channels: `begun` of launches that began; false when none of them runs.
  bool is_running(uint32_t* begun) const;

  Communicator* communicator_;
  Device* device_;
  std::unique_ptr<DeviceLinks> links_;
  std::shared_ptr<StagingMemory> memory_;
  cuda::DeviceStatus* status_ = nullptr;   // that kernels and host see
  DeviceStream own_stream_ = nullptr;      // for copies of the library's own
  DeviceEvent last_ = nullptr;             // behind the last launch
  DeviceEvent last_of_capture_ = nullptr;  // behind the last kernel of the capture with that number
  uint64_t capture_ = 0;
  std::vector<StagingMemory::Block> captured_lanes_;  // of kernels in graphs, which may run until the end
  std::atomic<bool> captured_any_{false};             // graphs launch kernels without a word
  uint32_t number_ = 0;
  std::array<std::atomic<uint32_t>, cuda::kMaxDeviceChannels> launched_{};  // number of the last on each channel
  std::map<Key, std::unique_ptr<Compiled>> compiled_;
  std::map<std::tuple<Collective, size_t, size_t>, Chosen> choices_;
  // Of the monitor:
  uint32_t seen_begun_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace treering
