// SPDX-License-Identifier: Apache-2.0
// Memory of the backend's devices, on the fake driver: allocations, whose memory an address is, and other processes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "device/fake_backend.h"

namespace treering::cuda {
namespace {

TEST(Memory, AllocationsAreZeroed) {
  Device* device = fake_device();
  FakeCuda& fake = fake_cuda();
  const int before = fake.allocations;
  void* memory = nullptr;
  ASSERT_TRUE(device->allocate(5000, &memory).ok());
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(static_cast<char*>(memory)[i], 0) << i;
  EXPECT_EQ(fake.allocations, before + 1);
  ASSERT_TRUE(device->free(memory).ok());
  EXPECT_EQ(fake.allocations, before);
  EXPECT_FALSE(device->free(memory).ok());
  EXPECT_TRUE(device->free(nullptr).ok());
}

TEST(Memory, FailuresSayHowMuchAndWhereAndLeaveNothing) {
  Device* device = fake_device();
  FakeCuda& fake = fake_cuda();
  const int before = fake.allocations, host_before = fake.host_allocations;
  void* memory = nullptr;
  fake.fail_next("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device->allocate(4096, &memory).message(),
            "cuMemAlloc of 4096 bytes on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_EQ(device->allocate(size_t{1} << 40, &memory).code(), trDeviceError);
  for (const char* function : {"cuMemsetD8Async", "cuStreamSynchronize"}) {
    fake.fail_next(function, CUDA_ERROR_INVALID_VALUE);
    const Status status = device->allocate(4096, &memory);
    EXPECT_NE(status.message().find(function), std::string::npos) << status.message();
    EXPECT_EQ(memory, nullptr);
  }
  EXPECT_EQ(fake.allocations, before);
  fake.fail_next("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device->allocate_host(64, &memory).message(),
            "cuMemHostAlloc of 64 bytes on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  fake.fail_next("cuMemHostGetDevicePointer", CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(device->allocate_host(64, &memory).ok());
  fake.unified_addresses = false;
  EXPECT_NE(device->allocate_host(64, &memory).message().find("unified addressing"), std::string::npos);
  fake.unified_addresses = true;
  EXPECT_EQ(fake.host_allocations, host_before);
}

TEST(Memory, HostMemoryIsZeroed) {
  Device* device = fake_device();
  void* memory = nullptr;
  ASSERT_TRUE(device->allocate_host(100, &memory).ok());
  for (int i = 0; i < 100; ++i) ASSERT_EQ(static_cast<char*>(memory)[i], 0);
  EXPECT_TRUE(device->free_host(memory).ok());
}

TEST(Memory, WhoseAnAddressIs) {
  Device *first = fake_device(0), *second = fake_device(1);
  FakeCuda& fake = fake_cuda();
  std::string why_not;
  DeviceBackend* backend = open_cuda_backend(&why_not);
  void *a = nullptr, *b = nullptr, *host = nullptr;
  ASSERT_TRUE(first->allocate(64, &a).ok());
  ASSERT_TRUE(second->allocate(64, &b).ok());
  ASSERT_TRUE(first->allocate_host(64, &host).ok());
  int unregistered = 0, managed = 0;
  fake.managed = &managed;
  // The second time the driver wants a context, which this thread has none of.
  for (bool need : {false, true}) {
    fake.pointers_need_context = need;
    EXPECT_EQ(backend->device_of(a), 0);
    EXPECT_EQ(backend->device_of(static_cast<char*>(b) + 63), 1);
    EXPECT_EQ(backend->device_of(host), -1);
    EXPECT_EQ(backend->device_of(&unregistered), -1);
    EXPECT_EQ(backend->device_of(&managed), -1);
    EXPECT_EQ(backend->device_of(nullptr), -1);
    for (const void* known :
         {static_cast<const void*>(a), static_cast<const void*>(host), static_cast<const void*>(&managed)})
      EXPECT_TRUE(backend->is_of_devices(known));
    EXPECT_FALSE(backend->is_of_devices(&unregistered));
  }
  fake.pointers_need_context = false;
  fake.managed = nullptr;
  EXPECT_TRUE(first->free(a).ok());
  EXPECT_TRUE(second->free(b).ok());
  EXPECT_TRUE(first->free_host(host).ok());
}

TEST(Memory, ReachIsAskedForOnceOrRefusedWithAReason) {
  Device *first = fake_device(0), *second = fake_device(1);
  FakeCuda& fake = fake_cuda();
  EXPECT_TRUE(first->reach(first).ok());
  EXPECT_TRUE(first->keeps_lines(first->info().uuid));
  EXPECT_TRUE(first->keeps_lines(second->info().uuid));
  EXPECT_FALSE(first->keeps_lines({}));  // no GPU of this machine
  fake.peer_access = false;
  EXPECT_FALSE(first->keeps_lines(second->info().uuid));
  EXPECT_EQ(first->reach(second).message(),
            "GPU 0 (0000:01:00.0) cannot access the memory of GPU 1 (0000:02:00.0): the machine has no path for it");
  fake.peer_access = true;
  fake.fail_next("cuCtxEnablePeerAccess", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(first->reach(second).message().find("cuCtxEnablePeerAccess to GPU 1 on GPU 0"), std::string::npos);
  EXPECT_TRUE(first->reach(second).ok());
  EXPECT_TRUE(first->reach(second).ok());  // it may be enabled already
}

// Another process that allocates 256 bytes (of 7), writes the handles of the first and of the hundredth byte to `out`,
// and ends when `in` does.
int export_to(int in, int out) {
  Device* device = fake_device();
  void* memory = nullptr;
  if (!device->allocate(256, &memory).ok()) return 1;
  std::memset(memory, 7, 256);
  for (size_t offset : {0, 100}) {
    DeviceHandle handle;
    if (!device->export_memory(static_cast<char*>(memory) + offset, &handle).ok()) return 2;
    if (write(out, &handle, sizeof handle) != sizeof handle) return 3;
  }
  char byte;
  if (read(in, &byte, 1) < 0) return 4;
  return static_cast<char*>(memory)[100] == 9 ? 0 : 5;
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
      execl("/proc/self/exe", "memory_test", "--export", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    end_ = to[1];
    for (DeviceHandle* handle : {&base, &inner})
      if (read(from[0], handle, sizeof *handle) != sizeof *handle) std::abort();
    close(from[0]);
  }
  int wait() {
    close(end_);
    int status = -1;
    waitpid(process_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  DeviceHandle base, inner;

 private:
  pid_t process_;
  int end_;
};

TEST(OtherProcesses, AnAllocationIsOpenedOnceAndClosedWithItsLastImport) {
  Device *first = fake_device(0), *second = fake_device(1);
  FakeCuda& fake = fake_cuda();
  Exporter exporter;
  const int opens = fake.calls_of("cuIpcOpenMemHandle"), closes = fake.calls_of("cuIpcCloseMemHandle");
  void *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
  ASSERT_TRUE(first->import_memory(exporter.base, &a).ok());
  ASSERT_TRUE(first->import_memory(exporter.inner, &b).ok());
  ASSERT_TRUE(first->import_memory(exporter.base, &c).ok());
  EXPECT_EQ(fake.calls_of("cuIpcOpenMemHandle") - opens, 1);
  EXPECT_EQ(a, c);
  EXPECT_EQ(b, static_cast<char*>(a) + 100);
  EXPECT_EQ(static_cast<char*>(a)[255], 7);
  // Each context opens for itself.
  ASSERT_TRUE(second->import_memory(exporter.base, &d).ok());
  EXPECT_EQ(fake.calls_of("cuIpcOpenMemHandle") - opens, 2);
  EXPECT_TRUE(second->close_memory(d).ok());
  EXPECT_TRUE(first->close_memory(a).ok());
  EXPECT_TRUE(first->close_memory(c).ok());
  EXPECT_EQ(first->close_memory(a).code(), trInvalidArgument);
  EXPECT_EQ(fake.calls_of("cuIpcCloseMemHandle") - closes, 1);
  *static_cast<char*>(b) = 9;  // still open
  EXPECT_TRUE(first->close_memory(b).ok());
  EXPECT_EQ(fake.opened_handles, 0);
  ASSERT_TRUE(first->import_memory(exporter.base, &a).ok());
  EXPECT_TRUE(first->close_memory(a).ok());
  EXPECT_EQ(exporter.wait(), 0);
}

TEST(OtherProcesses, FailuresAreToldAndLeaveNothing) {
  Device* device = fake_device();
  FakeCuda& fake = fake_cuda();
  void *memory = nullptr, *imported = nullptr;
  ASSERT_TRUE(device->allocate(64, &memory).ok());
  DeviceHandle own;
  fake.fail_next("cuIpcGetMemHandle", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_NE(device->export_memory(memory, &own).message().find("cuIpcGetMemHandle"), std::string::npos);
  int not_of_a_device = 0;
  EXPECT_NE(device->export_memory(&not_of_a_device, &own).message().find("cuMemGetAddressRange"), std::string::npos);
  ASSERT_TRUE(device->export_memory(memory, &own).ok());
  EXPECT_EQ(device->import_memory(own, &imported).code(), trInvalidUsage);
  EXPECT_EQ(device->import_memory(DeviceHandle{}, &imported).code(), trInvalidArgument);
  EXPECT_EQ(device->close_memory(memory).code(), trInvalidArgument);
  Exporter exporter;
  fake.fail_next("cuIpcOpenMemHandle", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device->import_memory(exporter.base, &imported).message(),
            "cuIpcOpenMemHandle on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  ASSERT_TRUE(device->import_memory(exporter.inner, &imported).ok());
  *static_cast<char*>(imported) = 9;
  fake.fail_next("cuIpcCloseMemHandle", CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(device->close_memory(imported).message().find("cuIpcCloseMemHandle on GPU 0"), std::string::npos);
  EXPECT_TRUE(device->free(memory).ok());
  EXPECT_EQ(exporter.wait(), 0);
}

}  // namespace
}  // namespace treering::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--export") == 0) return treering::cuda::export_to(3, 4);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
