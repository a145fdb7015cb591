// SPDX-License-Identifier: Apache-2.0
// DeviceKernels: a communicator's operations as kernels of its rank's GPU, over DeviceFifos.
//
//   launch():  choose -> compiled programs in device memory (cached) -> bind -> kernel on the caller's stream
//
// One kernel at a time uses the FIFOs: a launch waits for the last one, on whatever stream, and so do the launches of
// graphs, by nodes for events. A kernel waits for its peers as long as the host lets it: DeviceMonitor looks after all
// that are under way.
//
// Calls of a group that follow one another become one kernel, where the same one does them and none uses what another
// writes. Each takes the channels behind those of the call before, so that small ones run side by side. What a rank
// makes one kernel of is its own affair: channels follow from the calls alone, and each channel has them in order.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>

#include "communicator/calls/operation.h"
#include "device/choose.h"
#include "executor/execution.h"
#include "gpu/device_fifos.h"
#include "gpu/memory/staging_memory.h"
#include "gpu/stream_order.h"

namespace treering {

class DeviceKernels {
 public:
  static Status create(Communicator* communicator, Device* device, std::unique_ptr<DeviceFifos> fifos,
                       std::shared_ptr<StagingMemory> memory, DeviceStream own_stream,
                       std::unique_ptr<DeviceKernels>* made);
  // When everything has ended.
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // Whether the operation runs as a kernel; the same on all ranks. Sends and receives always do: their sizes are known
  // to two ranks alone.
  bool takes(const Operation& operation);
  // What a collective without further ado does; false where it is staged.
  bool predict(Collective collective, size_t bytes, size_t element_bytes, cuda::DeviceSelection* choice);
  // Every algorithm and protocol that could, with its predicted time, and what is chosen.
  std::string explain(Collective collective, size_t bytes, size_t element_bytes);
  double predict_transfer(size_t bytes) const { return cuda::transfer_us(fifos_->link(), bytes, fifos_->channels()); }
  // Everything that a launch needs and that may wait for the device: before kernels run that wait for this rank.
  Status prepare(const Operation& operation);
  // The calls of a group, or one.
  Status launch(std::span<const Operation> operations, DeviceStream stream);
  // Ends every wait of every kernel, from any thread.
  void abort();
  // Ends what is under way. False where a kernel stays, which may use everything for ever; is_idle() still tells.
  bool end();
  // By the monitor, while something is under way: fails the communicator when there is a reason to. False when nothing
  // is.
  bool look();
  // Makes what a kernel has found a failure of the communicator; from any thread.
  void find_failure();
  bool is_idle() const;
  // Graphs hold kernels of this rank, whose launches it does not see.
  bool has_captured() const { return captured_any_.load(std::memory_order_relaxed); }
  bool wait_until_idle(std::chrono::milliseconds timeout) const;
  uint32_t channels() const { return fifos_->channels(); }

 private:
  struct Compiled {
    Program program;
    void* image = nullptr;    // in device memory
    void* scratch = nullptr;  // likewise
    size_t scratch_bytes = 0;
  };
  using Key = std::tuple<const Algorithm*, cuda::DeviceProtocol, uint32_t, uint32_t, uint32_t>;

  DeviceKernels(Communicator* communicator, Device* device, std::unique_ptr<DeviceFifos> fifos,
                std::shared_ptr<StagingMemory> memory);
  struct Resolved {
    const cuda::DeviceSelection* choice;
    Compiled* compiled;
    trDataType_t type;  // of the kernel
    size_t element_bytes;
  };
  Status resolve(const Operation& operation, Resolved* resolved);
  Status compile(const cuda::DeviceSelection& choice, uint32_t root, Compiled** compiled);
  struct Plan;
  cuda::DeviceCall new_call();
  Status bind(const Operation& operation, Plan* one);
  Status bind_blocks(const Blocks& blocks, size_t unit, UnequalParts* parts, Plan* one);
  Status launch_transfers(const Operation& operation, DeviceStream stream);
  // Launches what is planned, if anything, and empties the plan.
  Status start(Plan* plan, DeviceStream stream);
  // Takes back memory that kernels read which have ended.
  void reclaim();
  struct Chosen {
    cuda::DeviceSelection choice;
    bool staged = false;  // through the host it takes less time
  };
  cuda::DeviceSelectionInput selection_input(Collective collective, size_t bytes, size_t element_bytes) const;
  const Chosen& choose(Collective collective, size_t bytes, size_t element_bytes, bool unequal);
  bool is_staged_better(Collective collective, size_t bytes, double kernel_us) const;
  // Sum over all channels: `begun` of calls that began; false when none of them runs. `call`: the number of the first
  // of those that do.
  bool is_running(uint32_t* begun, uint32_t* call) const;
  // The number of the collective that the call is; 0 of sends and receives.
  uint64_t collective_of(uint32_t call) const;
  std::string who_has_left() const;

  Communicator* communicator_;
  Device* device_;
  std::unique_ptr<DeviceFifos> fifos_;
  std::shared_ptr<StagingMemory> memory_;
  cuda::DeviceStatus* status_ = nullptr;  // that kernels and host see
  DeviceStream own_stream_ = nullptr;     // for copies of the library's own
  StreamOrder order_;
  struct Lent {
    StagingMemory::Block block;
    uint32_t number;  // of the last call that reads it
    uint32_t first_channel, channels;
  };
  std::deque<Lent> lent_;
  std::vector<StagingMemory::Block> ready_;     // lent by prepare(), for the next launch to lend again
  std::vector<StagingMemory::Block> captured_;  // of kernels in graphs, which may run until the end
  std::atomic<bool> captured_any_{false};       // graphs launch kernels without a word
  uint32_t number_ = 0;                         // of calls, sends and receives included: of this rank alone
  // What the calls were that were given last, for the monitor: number of the call, number among collectives.
  static constexpr uint32_t kNumbersKept = 256;
  std::array<std::atomic<uint64_t>, kNumbersKept> collectives_{};
  uint64_t history_ = 0;       // of all collectives so far: the same on all ranks
  uint32_t next_channel_ = 0;  // likewise
  std::array<std::atomic<uint32_t>, cuda::kMaxDeviceChannels> launched_{};  // number of the last on each channel
  std::map<Key, std::unique_ptr<Compiled>> compiled_;
  std::mutex choices_mutex_;                                                // other threads may ask
  std::map<std::tuple<Collective, size_t, size_t, bool>, Chosen> choices_;  // never changed
  // The monitor's:
  uint32_t seen_begun_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace treering
