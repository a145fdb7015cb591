// SPDX-License-Identifier: Apache-2.0
// Ranks with GPUs, and buffers in their memory: all ranks of a communicator in this process, or one of them.
//
// What a check does it does for the ranks of this process, local(); so one check serves both. A thread gives the calls
// of all its ranks in one group, as it must where it drives several GPUs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/gpu_program.h"
#include "treering/treering.h"

namespace treering::testing {

// 4-byte elements in memory of a device, or of the host for device -1.
class Buffer {
 public:
  Buffer() = default;  // of a rank elsewhere
  Buffer(int device, size_t count, int first = 0, int step = 0);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  // Without memory where the device has none left.
  static Buffer if_it_fits(int device, size_t count);

  int* data() const { return data_; }
  size_t count() const { return count_; }
  void write(size_t first, size_t count, const void* from) const;
  void read(size_t first, size_t count, void* to) const;
  void fill(const std::function<int(size_t)>& value) const;
  // A test asks when the stream has passed.
  ::testing::AssertionResult all_equal(const std::function<int(size_t)>& value) const;

 private:
  Buffer(int device, size_t count, bool may_fail);
  int device_ = -1;
  size_t count_ = 0;
  int* data_ = nullptr;
};

// Kernels wherever they are possible: else the host does large operations where links seem slow, as on a busy machine.
trConfig_t by_kernels();

// Rank r is on device devices[r], or on none (-1).
class DeviceRanks {
 public:
  explicit DeviceRanks(std::vector<int> devices, int timeout_ms = 60'000, trConfig_t config = TR_CONFIG_INITIALIZER);
  // The one of this process.
  DeviceRanks(std::vector<int> devices, const trUniqueId& id, int rank, trConfig_t config = TR_CONFIG_INITIALIZER);
  ~DeviceRanks();
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  int count() const { return static_cast<int>(devices_.size()); }
  const std::vector<int>& local() const { return local_; }
  bool is_local(int rank) const;
  int device(int rank) const { return devices_[static_cast<size_t>(rank)]; }
  trComm_t& comm(int rank) { return comms_[static_cast<size_t>(rank)]; }
  trStream_t stream(int rank) const { return streams_[static_cast<size_t>(rank)]; }
  DeviceStream cuda(int rank) const { return cuda_[static_cast<size_t>(rank)]; }

  using Body = std::function<trResult_t(int rank, trComm_t comm, trStream_t stream)>;
  // Calls body for the ranks in a group, with their streams or, blocking, without; and waits.
  void run(bool blocking, const Body& body);
  // Gives the calls to the streams.
  void enqueue(const Body& body);
  void synchronize();
  // A buffer for each rank; of the default value rank + 1.
  using Value = std::function<int(int rank, size_t i)>;
  std::vector<Buffer> buffers(size_t count, int step = 0, bool host = false) const;
  std::vector<Buffer> buffers(size_t count, const Value& value, bool host = false) const;

 private:
  void init(const trUniqueId& id, trConfig_t config);
  std::vector<int> devices_, local_;
  std::vector<trComm_t> comms_;
  std::vector<DeviceStream> cuda_;
  std::vector<trStream_t> streams_;
};

}  // namespace treering::testing
