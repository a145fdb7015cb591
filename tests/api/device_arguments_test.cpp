// What is wrong with arguments that have to do with GPUs is named. The devices are the stand-ins of support/cpu_device.h.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace treering::testing
