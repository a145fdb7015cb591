// Ranks of one process with the stand-ins for GPUs (cpu_device.h), and buffers in their memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "support/cpu_device.h"
#include "treering/treering.h"

namespace treering::testing {

// Elements in memory of a device, or of the host for device -1.
class Buffer {
 public:
  Buffer(int device, size_t count, int first = 0, int step = 0) : device_(device), count_(count) {
    void* memory = nullptr;
    if (device < 0)
      memory = std::malloc(count * sizeof(int) + 1);
    else
      EXPECT_EQ(trDeviceMemAlloc(&memory, count * sizeof(int) + 1, device), trSuccess) << trGetLastError(nullptr);
    data_ = static_cast<int*>(memory);
    for (size_t i = 0; i < count; ++i) data_[i] = first + static_cast<int>(i) * step;
  }
  ~Buffer() {
    if (device_ < 0) std::free(data_);
    EXPECT_TRUE(device_ < 0 || trDeviceMemFree(data_) == trSuccess);
  }
  Buffer(Buffer&& other) : device_(other.device_), count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  int* data() const { return data_; }
  size_t count() const { return count_; }
  // The stand-in's memory can be read here; a test does so when the stream has passed.
  bool all_equal(const std::function<int(size_t)>& value) const {
    for (size_t i = 0; i < count_; ++i)
      if (data_[i] != value(i)) return false;
    return true;
  }

 private:
  int device_;
  size_t count_;
  int* data_;
};

// Ranks of one process, rank r on device devices[r] or on none.
class DeviceRanks {
 public:
  explicit DeviceRanks(std::vector<int> devices, int timeout_ms = 60'000, trConfig_t config = TR_CONFIG_INITIALIZER)
      : devices_(std::move(devices)) {
    trUniqueId id;
    EXPECT_EQ(trGetUniqueId(&id), trSuccess);
    comms_.resize(devices_.size());
    EXPECT_EQ(trGroupStart(), trSuccess);
    for (size_t rank = 0; rank < devices_.size(); ++rank) {
      config.device = devices_[rank];
      config.timeout_ms = timeout_ms;
      EXPECT_EQ(trCommInitRankConfig(&comms_[rank], count(), id, static_cast<int>(rank), &config), trSuccess);
    }
    EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    for (int device : devices_) {
      cuda_.push_back(device < 0 ? nullptr : create_cpu_stream(device));
      streams_.emplace_back();
      EXPECT_EQ(
          device < 0 ? trStreamCreate(&streams_.back()) : trStreamFromCuda(&streams_.back(), device, cuda_.back()),
          trSuccess);
    }
  }
  ~DeviceRanks() {
    for (trStream_t stream : streams_) EXPECT_EQ(trStreamDestroy(stream), trSuccess);
    for (trComm_t comm : comms_) EXPECT_TRUE(comm == nullptr || trCommDestroy(comm) == trSuccess);
    for (DeviceStream stream : cuda_)
      if (stream != nullptr) destroy_cpu_stream(stream);
  }
  int count() const { return static_cast<int>(devices_.size()); }
  int device(int rank) const { return devices_[static_cast<size_t>(rank)]; }
  trComm_t& comm(int rank) { return comms_[static_cast<size_t>(rank)]; }
  trStream_t stream(int rank) const { return streams_[static_cast<size_t>(rank)]; }
  DeviceStream cuda(int rank) const { return cuda_[static_cast<size_t>(rank)]; }

  // Calls body(rank, comm, stream) for all ranks, with their streams or, blocking in a group, without.
  void run(bool blocking, const std::function<trResult_t(int, trComm_t, trStream_t)>& body) {
    ASSERT_EQ(trGroupStart(), trSuccess);
    for (int rank = 0; rank < count(); ++rank)
      EXPECT_EQ(body(rank, comm(rank), blocking ? nullptr : stream(rank)), trSuccess) << trGetLastError(nullptr);
    ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    if (!blocking) synchronize();
  }
  void synchronize() {
    for (int rank = 0; rank < count(); ++rank) ASSERT_EQ(trStreamSynchronize(stream(rank)), trSuccess);
    for (int rank = 0; rank < count(); ++rank) {
      trResult_t result = trInternalError;
      ASSERT_EQ(trCommGetAsyncError(comm(rank), &result), trSuccess);
      ASSERT_TRUE(result == trSuccess || result == trInProgress) << trGetLastError(comm(rank));
    }
  }
  std::vector<Buffer> buffers(size_t count, int step = 0, bool host = false) const {
    std::vector<Buffer> made;
    for (size_t rank = 0; rank < devices_.size(); ++rank)
      made.emplace_back(host ? -1 : devices_[rank], count, static_cast<int>(rank) + 1, step);
    return made;
  }

 private:
  std::vector<int> devices_;
  std::vector<trComm_t> comms_;
  std::vector<DeviceStream> cuda_;
  std::vector<trStream_t> streams_;
};

}  // namespace treering::testing
