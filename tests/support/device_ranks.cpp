// SPDX-License-Identifier: Apache-2.0
#include "support/device_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace treering::testing {
namespace {

void copy(void* to, const void* from, size_t bytes, int device) {
  if (bytes == 0) return;
  if (device < 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  trStream_t stream = nullptr;
  EXPECT_EQ(trStreamFromCuda(&stream, device, nullptr), trSuccess);
  EXPECT_EQ(trDeviceMemCopy(to, from, bytes, stream), trSuccess) << trGetLastError(nullptr);
}

}  // namespace

trConfig_t by_kernels() {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device_protocol = "ll,ll128,simple";
  return config;
}

Buffer::Buffer(int device, size_t count, bool may_fail) : device_(device), count_(count) {
  void* memory = nullptr;
  // A byte more, because no allocation is empty.
  const size_t bytes = count * sizeof(int) + 1;
  if (device < 0) {
    memory = std::malloc(bytes);
  } else {
    const trResult_t result = trDeviceMemAlloc(&memory, bytes, device);
    const bool is_short = std::string(trGetLastError(nullptr)).find("OUT_OF_MEMORY") != std::string::npos;
    EXPECT_TRUE(result == trSuccess || (may_fail && is_short)) << trGetLastError(nullptr);
    if (result != trSuccess) memory = nullptr;
  }
  data_ = static_cast<int*>(memory);
}
Buffer::Buffer(int device, size_t count, int first, int step) : Buffer(device, count, false) {
  fill([&](size_t i) { return first + static_cast<int>(i) * step; });
}
Buffer Buffer::if_it_fits(int device, size_t count) { return Buffer(device, count, true); }
Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
Buffer::~Buffer() {
  if (device_ < 0) std::free(data_);
  EXPECT_TRUE(device_ < 0 || trDeviceMemFree(data_) == trSuccess);
}

void Buffer::write(size_t first, size_t count, const void* from) const {
  copy(data_ + first, from, count * sizeof(int), device_);
}
void Buffer::read(size_t first, size_t count, void* to) const { copy(to, data_ + first, count * sizeof(int), device_); }
void Buffer::fill(const std::function<int(size_t)>& value) const {
  std::vector<int> values(count_);
  for (size_t i = 0; i < count_; ++i) values[i] = value(i);
  write(0, count_, values.data());
}
::testing::AssertionResult Buffer::all_equal(const std::function<int(size_t)>& value) const {
  std::vector<int> values(count_);
  read(0, count_, values.data());
  for (size_t i = 0; i < count_; ++i)
    if (const int expected = value(i); values[i] != expected)
      return ::testing::AssertionFailure()
             << "element " << i << " of " << count_ << " is " << values[i] << ", not " << expected;
  return ::testing::AssertionSuccess();
}

DeviceRanks::DeviceRanks(std::vector<int> devices, int timeout_ms, trConfig_t config) : devices_(std::move(devices)) {
  trUniqueId id;
  EXPECT_EQ(trGetUniqueId(&id), trSuccess);
  local_.resize(devices_.size());
  std::iota(local_.begin(), local_.end(), 0);
  config.timeout_ms = timeout_ms;
  init(id, config);
}
DeviceRanks::DeviceRanks(std::vector<int> devices, const trUniqueId& id, int rank, trConfig_t config)
    : devices_(std::move(devices)), local_{rank} {
  if (config.timeout_ms == TR_CONFIG_UNDEF_INT) config.timeout_ms = 60'000;
  init(id, config);
}

void DeviceRanks::init(const trUniqueId& id, trConfig_t config) {
  comms_.resize(devices_.size());
  cuda_.resize(devices_.size());
  streams_.resize(devices_.size());
  EXPECT_EQ(trGroupStart(), trSuccess);
  for (int rank : local_) {
    config.device = device(rank);
    EXPECT_EQ(trCommInitRankConfig(&comm(rank), count(), id, rank, &config), trSuccess);
  }
  EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  for (int rank : local_) {
    const auto at = static_cast<size_t>(rank);
    if (device(rank) >= 0) cuda_[at] = create_stream_of(device(rank));
    EXPECT_EQ(
        device(rank) < 0 ? trStreamCreate(&streams_[at]) : trStreamFromCuda(&streams_[at], device(rank), cuda_[at]),
        trSuccess);
  }
}

DeviceRanks::~DeviceRanks() {
  for (int rank : local_) EXPECT_EQ(trStreamDestroy(stream(rank)), trSuccess);
  for (int rank : local_) EXPECT_TRUE(comm(rank) == nullptr || trCommDestroy(comm(rank)) == trSuccess);
  for (int rank : local_)
    if (device(rank) >= 0) destroy_stream(cuda(rank));
}

bool DeviceRanks::is_local(int rank) const { return std::find(local_.begin(), local_.end(), rank) != local_.end(); }

void DeviceRanks::run(bool blocking, const Body& body) {
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank : local_)
    EXPECT_EQ(body(rank, comm(rank), blocking ? nullptr : stream(rank)), trSuccess) << trGetLastError(nullptr);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
  if (!blocking) synchronize();
}

void DeviceRanks::enqueue(const Body& body) {
  ASSERT_EQ(trGroupStart(), trSuccess);
  for (int rank : local_) EXPECT_EQ(body(rank, comm(rank), stream(rank)), trSuccess) << trGetLastError(nullptr);
  ASSERT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
}

void DeviceRanks::synchronize() {
  for (int rank : local_) ASSERT_EQ(trStreamSynchronize(stream(rank)), trSuccess);
  for (int rank : local_) {
    trResult_t result = trInternalError;
    ASSERT_EQ(trCommGetAsyncError(comm(rank), &result), trSuccess);
    ASSERT_TRUE(result == trSuccess || result == trInProgress) << trGetLastError(comm(rank));
  }
}

std::vector<Buffer> DeviceRanks::buffers(size_t count, int step, bool host) const {
  return buffers(
      count, [step](int rank, size_t i) { return rank + 1 + static_cast<int>(i) * step; }, host);
}
std::vector<Buffer> DeviceRanks::buffers(size_t count, const Value& value, bool host) const {
  std::vector<Buffer> made;
  for (int rank = 0; rank < this->count(); ++rank) {
    if (!is_local(rank)) {
      made.emplace_back();
      continue;
    }
    made.emplace_back(host ? -1 : device(rank), count);
    made.back().fill([&](size_t i) { return value(rank, i); });
  }
  return made;
}

}  // namespace treering::testing
