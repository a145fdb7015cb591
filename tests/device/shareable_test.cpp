// SPDX-License-Identifier: Apache-2.0
// Memory of a device that is shared through file descriptors, on the fake driver: real descriptors between real
// processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "device/fake_backend.h"

namespace treering::cuda {
namespace {

bool nothing_left(FakeCuda& fake) { return fake.shareable == 0 && fake.reservations == 0 && fake.mappings == 0; }

TEST(Shareable, IsMemoryOfItsDeviceAndZeroed) {
  Device* device = fake_device(1);
  FakeCuda& fake = fake_cuda();
  std::string why_not;
  void* memory = nullptr;
  ASSERT_TRUE(device->allocate_shareable(5000, &memory).ok());
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(static_cast<char*>(memory)[i], 0) << i;
  EXPECT_EQ(open_cuda_backend(&why_not)->device_of(static_cast<char*>(memory) + 4999), 1);
  EXPECT_EQ(fake.shareable, 1);
  EXPECT_TRUE(device->free(memory).ok());
  EXPECT_TRUE(nothing_left(fake));
  EXPECT_FALSE(device->free(memory).ok());
}

TEST(Shareable, FailuresNameTheCallAndLeaveNothing) {
  Device* device = fake_device();
  FakeCuda& fake = fake_cuda();
  void* memory = nullptr;
  for (const char* function : {"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap",
                               "cuMemSetAccess", "cuMemsetD8Async"}) {
    fake.fail_next(function, CUDA_ERROR_NOT_SUPPORTED);
    const Status status = device->allocate_shareable(4096, &memory);
    EXPECT_NE(status.message().find(function), std::string::npos) << status.message();
    EXPECT_TRUE(nothing_left(fake)) << function;
  }
  DeviceHandle handle;
  ASSERT_TRUE(device->allocate_shareable(4096, &memory).ok());
  fake.fail_next("cuMemExportToShareableHandle", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(device->export_memory(memory, &handle).message().find("cuMemExportToShareableHandle on GPU 0"),
            std::string::npos);
  EXPECT_TRUE(device->export_memory(memory, &handle).ok());
  EXPECT_TRUE(device->free(memory).ok());
  EXPECT_TRUE(nothing_left(fake));
}

// Another process that allocates 300000 bytes (of 7), writes the handle to `out`, and ends when `in` does.
int export_to(int in, int out) {
  Device* device = fake_device();
  void* memory = nullptr;
  if (!device->allocate_shareable(300'000, &memory).ok()) return 1;
  std::memset(memory, 7, 300'000);
  DeviceHandle handle, again;
  if (!device->export_memory(memory, &handle).ok() || !device->export_memory(memory, &again).ok()) return 2;
  if (handle.bytes != again.bytes) return 3;
  if (write(out, &handle, sizeof handle) != sizeof handle) return 4;
  char byte;
  if (read(in, &byte, 1) < 0) return 5;
  if (static_cast<char*>(memory)[299'999] != 9) return 6;
  return device->free(memory).ok() ? 0 : 7;
}

class Exporter {
 public:
  Exporter() {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) std::abort();
    process_ = fork();
    if (process_ == 0) {
      alarm(60);
      close(to[1]);
      dup2(to[0], 3);
      dup2(from[1], 4);
      execl("/proc/self/exe", "shareable_test", "--export", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    end_ = to[1];
    if (read(from[0], &handle, sizeof handle) != sizeof handle) std::abort();
    close(from[0]);
  }
  int wait() {
    close(end_);
    int status = -1;
    waitpid(process_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  DeviceHandle handle;

 private:
  pid_t process_;
  int end_;
};

TEST(ShareableBetweenProcesses, IsOneMemory) {
  FakeCuda& fake = fake_cuda();
  Exporter exporter;
  void *first = nullptr, *second = nullptr;
  ASSERT_TRUE(fake_device(0)->import_memory(exporter.handle, &first).ok());
  ASSERT_TRUE(fake_device(1)->import_memory(exporter.handle, &second).ok());
  EXPECT_NE(first, second);
  EXPECT_EQ(static_cast<char*>(first)[299'999], 7);
  static_cast<char*>(second)[299'999] = 9;
  EXPECT_EQ(static_cast<char*>(first)[299'999], 9);
  EXPECT_TRUE(fake_device(0)->close_memory(first).ok());
  EXPECT_TRUE(fake_device(1)->close_memory(second).ok());
  EXPECT_TRUE(nothing_left(fake));
  EXPECT_EQ(exporter.wait(), 0);
}

TEST(ShareableBetweenProcesses, WrongTicketsAndEndedProcessesAreErrors) {
  FakeCuda& fake = fake_cuda();
  Exporter exporter;
  void* memory = nullptr;
  DeviceHandle wrong = exporter.handle;
  wrong.bytes[16 + 16] ^= std::byte{1};  // of the secret
  EXPECT_NE(fake_device()->import_memory(wrong, &memory).message().find("has no such memory"), std::string::npos);
  fake.fail_next("cuMemImportFromShareableHandle", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(fake_device()->import_memory(exporter.handle, &memory).message().find("cuMemImportFromShareableHandle"),
            std::string::npos);
  fake.fail_next("cuMemMap", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_FALSE(fake_device()->import_memory(exporter.handle, &memory).ok());
  EXPECT_TRUE(nothing_left(fake));
  EXPECT_EQ(exporter.wait(), 6) << "the 9 was not written";
  EXPECT_NE(fake_device()->import_memory(exporter.handle, &memory).message().find("connect"), std::string::npos);
}

}  // namespace
}  // namespace treering::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--export") == 0) return treering::cuda::export_to(3, 4);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
