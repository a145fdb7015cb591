// SPDX-License-Identifier: Apache-2.0
// What is wrong with arguments that have to do with GPUs is named. The devices are the stand-ins of
// support/cpu_device.h.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <string>

#include "support/cpu_device.h"
#include "support/device_ranks.h"

namespace treering::testing {
namespace {

TEST(DeviceArguments, WrongOnesAreNamed) {
  const auto error_of = [](trResult_t result) {
    return result == trSuccess ? std::string("success") : std::string(trGetLastError(nullptr));
  };
  int count = 0;
  ASSERT_EQ(trDeviceCount(&count), trSuccess);
  EXPECT_EQ(count, kCpuDevices);
  trStream_t stream = nullptr;
  EXPECT_NE(error_of(trStreamFromCuda(&stream, 99, nullptr)).find("device is 99"), std::string::npos);
  void* memory = nullptr;
  EXPECT_NE(error_of(trDeviceMemAlloc(&memory, 0, 0)).find("size is 0"), std::string::npos);
  EXPECT_NE(error_of(trDeviceMemFree(&count)).find("not memory of a GPU"), std::string::npos);
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device = 99;
  trUniqueId id;
  ASSERT_EQ(trGetUniqueId(&id), trSuccess);
  trComm_t comm = nullptr;
  EXPECT_NE(error_of(trCommInitRankConfig(&comm, 1, id, 0, &config)).find("device is 99"), std::string::npos);

  DeviceRanks ranks({0, -1});
  Buffer data(0, 10);
  size_t rows = 0;
  EXPECT_NE(error_of(trSparseAllReduce(reinterpret_cast<int64_t*>(data.data()), data.data(), 1, 1, trInt32, trSum,
                                       nullptr, nullptr, 0, &rows, ranks.comm(0)))
                .find("memory of a GPU"),
            std::string::npos);
  trStream_t host = nullptr, wrong = nullptr;
  ASSERT_EQ(trStreamCreate(&host), trSuccess);
  ASSERT_EQ(trStreamFromCuda(&wrong, 1, nullptr), trSuccess);
  const auto reduce = [&](int rank, trStream_t s) {
    return error_of(trAllReduce(data.data(), data.data(), 10, trInt32, trSum, ranks.comm(rank), s));
  };
  EXPECT_NE(reduce(0, host).find("stream is the host's"), std::string::npos);
  EXPECT_NE(reduce(0, wrong).find("stream is of GPU 1"), std::string::npos);
  EXPECT_NE(reduce(1, wrong).find("the communicator has no GPU"), std::string::npos);
  EXPECT_EQ(trStreamDestroy(wrong), trSuccess);
  EXPECT_NE(reduce(0, wrong).find("was destroyed"), std::string::npos);
  EXPECT_EQ(trStreamDestroy(host), trSuccess);
}

// Its pages would be torn away from the GPU.
TEST(DeviceArguments, PinnedMemoryIsNotMoved) {
  DeviceRanks ranks({0, 1});
  constexpr size_t kPage = 4096, kPages = 64;
  void* mapped = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* memory = static_cast<std::byte*>(mapped);
  void *handle = nullptr, *again = nullptr;
  pin_for_cpu_devices(memory + 30 * kPage, kPage);
  EXPECT_EQ(trCommRegister(ranks.comm(0), memory, kPages * kPage, &handle), trInvalidArgument);
  EXPECT_NE(std::string(trGetLastError(ranks.comm(0))).find("is pinned by CUDA"), std::string::npos)
      << trGetLastError(ranks.comm(0));
  EXPECT_EQ(trCommRegister(ranks.comm(0), memory, 30 * kPage, &handle), trSuccess) << "what lies before it";
  EXPECT_EQ(trCommDeregister(ranks.comm(0), handle), trSuccess);
  unpin_for_cpu_devices(memory + 30 * kPage);
  EXPECT_EQ(trCommRegister(ranks.comm(0), memory, kPages * kPage, &handle), trSuccess);
  EXPECT_NE(handle, nullptr);
  pin_for_cpu_devices(memory, kPage);
  EXPECT_EQ(trCommRegister(ranks.comm(0), memory, kPages * kPage, &again), trSuccess) << "nothing is moved again";
  EXPECT_EQ(again, nullptr);
  unpin_for_cpu_devices(memory);
  EXPECT_EQ(trCommDeregister(ranks.comm(0), handle), trSuccess);
  munmap(mapped, kPages * kPage);
}

}  // namespace
}  // namespace treering::testing
