// SPDX-License-Identifier: Apache-2.0
// The backend's devices, contexts, kernels and errors, on the fake driver.
#include <gtest/gtest.h>

#include <thread>

#include "device/fake_backend.h"

namespace treering::cuda {
namespace {

DeviceBackend* backend() {
  fake_cuda();
  std::string why_not;
  DeviceBackend* opened = open_cuda_backend(&why_not);
  EXPECT_NE(opened, nullptr) << why_not;
  return opened;
}

using GetCurrent = CUresult (*)(CUcontext*);
using PushCurrent = CUresult (*)(CUcontext);
using Retain = CUresult (*)(CUcontext*, CUdevice);
using ExchangeMode = CUresult (*)(CUstreamCaptureMode*);
template <class Function>
Function driver_function(const char* name) {
  return reinterpret_cast<Function>(fake_function(name));
}
constexpr CUdevice kFirstHandle = 100;

// Before any device is open.
TEST(Backend, FailuresOfOpeningNameTheCall) {
  FakeCuda& fake = fake_cuda();
  Device* device = nullptr;
  for (const char* function :
       {"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetPCIBusId", "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuCtxPushCurrent"}) {
    fake.fail_next(function, CUDA_ERROR_OUT_OF_MEMORY);
    const Status status = backend()->open(1, &device);
    EXPECT_EQ(status.code(), trDeviceError) << function;
    EXPECT_NE(status.message().find(function), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("GPU 1"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("CUDA_ERROR_OUT_OF_MEMORY (out of memory)"), std::string::npos) << status.message();
    EXPECT_EQ(fake.contexts, 0) << function;
  }
  fake.capability = 70;
  EXPECT_EQ(backend()->open(1, &device).message(),
            "GPU 1 (Fake GPU 1) has compute capability 7.0; 7.5 is the least that is supported");
  fake.capability = 90;
  for (int ordinal : {-1, 2}) EXPECT_EQ(backend()->open(ordinal, &device).code(), trInvalidArgument);
  // A thread without a context, and no device open: all memory is the host's.
  fake.pointers_need_context = true;
  EXPECT_EQ(backend()->device_of(&fake), -1);
  fake.pointers_need_context = false;
}

TEST(Backend, DevicesAreDescribedAndOpenedOnce) {
  std::vector<std::thread> threads;
  std::vector<Device*> opened(8);
  for (Device*& device : opened) threads.emplace_back([&device] { EXPECT_TRUE(backend()->open(1, &device).ok()); });
  for (std::thread& thread : threads) thread.join();
  for (Device* device : opened) EXPECT_EQ(device, opened[0]);
  EXPECT_EQ(fake_cuda().contexts, 1);
  const DeviceInfo& info = opened[0]->info();
  EXPECT_EQ(info.ordinal, 1);
  EXPECT_EQ(info.name, "Fake GPU 1");
  EXPECT_EQ(info.bus_id, "0000:02:00.0");
  EXPECT_EQ(info.multiprocessors, 108u);
  EXPECT_EQ(info.compute_capability, 90u);
  EXPECT_EQ(info.uuid[0], 101);
  EXPECT_EQ(info.uuid[15], 101);
}

TEST(Backend, TheCurrentDeviceIsThatOfTheThread) {
  int ordinal = -5;
  ASSERT_TRUE(backend()->current(&ordinal).ok());
  EXPECT_EQ(ordinal, 0);
  CUcontext context = nullptr;
  ASSERT_EQ(driver_function<Retain>("cuDevicePrimaryCtxRetain")(&context, kFirstHandle + 1), CUDA_SUCCESS);
  std::thread([&] {
    driver_function<PushCurrent>("cuCtxPushCurrent_v2")(context);
    EXPECT_TRUE(backend()->current(&ordinal).ok());
    EXPECT_EQ(ordinal, 1);
    fake_cuda().fail_next("cuCtxGetDevice", CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(backend()->current(&ordinal).message(),
              "cuCtxGetDevice: CUDA_ERROR_INVALID_CONTEXT (as the fake driver says)");
  }).join();
  ASSERT_TRUE(backend()->current(&ordinal).ok());
  EXPECT_EQ(ordinal, 0);
}

// Whatever happens in between, each call leaves the thread's context and capture mode as they were.
TEST(Backend, EveryCallLeavesTheContextAsItWas) {
  Device* device = fake_device();
  FakeCuda& fake = fake_cuda();
  CUcontext other = nullptr, current = nullptr;
  ASSERT_EQ(driver_function<Retain>("cuDevicePrimaryCtxRetain")(&other, kFirstHandle + 1), CUDA_SUCCESS);
  for (CUcontext before : {CUcontext(nullptr), other})
    std::thread([&] {
      if (before != nullptr) driver_function<PushCurrent>("cuCtxPushCurrent_v2")(before);
      const int pushes = fake.calls_of("cuCtxPushCurrent"), pops = fake.calls_of("cuCtxPopCurrent");
      void *memory = nullptr, *host = nullptr;
      DeviceStream stream = nullptr;
      DeviceHandle handle;
      EXPECT_TRUE(device->allocate(100, &memory).ok());
      EXPECT_TRUE(device->allocate_host(100, &host).ok());
      EXPECT_TRUE(device->create_stream(&stream).ok());
      EXPECT_TRUE(device->export_memory(memory, &handle).ok());
      EXPECT_FALSE(device->import_memory(handle, &memory).ok());
      EXPECT_FALSE(device->close_memory(memory).ok());
      EXPECT_TRUE(device->copy(memory, host, 100, stream).ok());
      EXPECT_FALSE(device->is_capturing(stream));
      for (const char* function : {"cuMemcpyAsync", "cuCtxPushCurrent"}) {
        fake.fail_next(function, CUDA_ERROR_INVALID_VALUE);
        const Status status = device->copy(memory, host, 100, stream);
        EXPECT_NE(status.message().find(function), std::string::npos) << status.message();
        EXPECT_NE(status.message().find("100 bytes"), std::string::npos) << status.message();
      }
      EXPECT_TRUE(device->synchronize(stream).ok());
      EXPECT_TRUE(device->destroy_stream(stream).ok());
      EXPECT_TRUE(device->free(memory).ok());
      EXPECT_TRUE(device->free_host(host).ok());
      driver_function<GetCurrent>("cuCtxGetCurrent")(&current);
      EXPECT_EQ(current, before);
      EXPECT_EQ(fake.calls_of("cuCtxPushCurrent") - pushes - 1, fake.calls_of("cuCtxPopCurrent") - pops);
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
      driver_function<ExchangeMode>("cuThreadExchangeStreamCaptureMode")(&mode);
      EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }).join();
}

TEST(Kernels, AModuleIsLoadedOnceForEachDeviceAndType) {
  FakeCuda& fake = fake_cuda();
  Device *first = fake_device(0), *second = fake_device(1);
  const DeviceLaunch nothing{};  // no blocks: the kernel is made ready
  const int loads = fake.calls_of("cuModuleLoadData"), launches = fake.calls_of("cuLaunchKernel");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (DeviceProtocol protocol : {DeviceProtocol::kLl, DeviceProtocol::kLl128, DeviceProtocol::kSimple})
        EXPECT_TRUE(first->launch(nothing, trFloat32, protocol, 64, nullptr).ok());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake.calls_of("cuModuleLoadData") - loads, 1);
  ASSERT_TRUE(second->launch(nothing, trFloat32, DeviceProtocol::kLl, 64, nullptr).ok());
  EXPECT_EQ(fake.calls_of("cuModuleLoadData") - loads, 2);
  // bool has the kernels of uint8.
  ASSERT_TRUE(first->launch(nothing, trBool, DeviceProtocol::kLl, 64, nullptr).ok());
  ASSERT_TRUE(first->launch(nothing, trUint8, DeviceProtocol::kSimple, 64, nullptr).ok());
  EXPECT_EQ(fake.calls_of("cuModuleLoadData") - loads, 3);
  EXPECT_EQ(fake.calls_of("cuLaunchKernel"), launches);
}

TEST(Kernels, EveryTypeIsThere) {
  for (int type = trInt8; type <= trBool; ++type)
    for (uint32_t protocol = 0; protocol < kProtocols; ++protocol) {
      const Status status = fake_device()->launch(DeviceLaunch{}, static_cast<trDataType_t>(type),
                                                  static_cast<DeviceProtocol>(protocol), 64, nullptr);
      EXPECT_TRUE(status.ok()) << status.message();
    }
}

TEST(Kernels, AFailedLoadLeavesNothingAndIsTriedAgain) {
  FakeCuda& fake = fake_cuda();
  Device* device = fake_device(1);
  const int modules = fake.modules;
  const auto launch = [&] { return device->launch(DeviceLaunch{}, trInt64, DeviceProtocol::kLl, 64, nullptr); };
  fake.fail_next("cuModuleLoadData", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(launch().message(),
            "GPU 1: cuModuleLoadData of the kernels of int64: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  fake.fail_next("cuModuleGetFunction", CUDA_ERROR_NOT_FOUND);
  EXPECT_NE(launch().message().find("cuModuleGetFunction of treering_int64_ll: CUDA_ERROR_NOT_FOUND"),
            std::string::npos);
  fake.fail_next("cuFuncGetAttribute", CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(launch().message().find("cuFuncGetAttribute of treering_int64_ll"), std::string::npos);
  fake.kernel_threads = 256;
  EXPECT_EQ(launch().message(), "GPU 1: treering_int64_ll runs with 256 threads at most, not 512");
  fake.kernel_threads = 512;
  EXPECT_EQ(fake.modules, modules);
  EXPECT_TRUE(launch().ok());
  EXPECT_EQ(fake.modules, modules + 1);
}

TEST(Kernels, BadLaunchesAreRefused) {
  Device* device = fake_device();
  DeviceLaunch call{};
  for (uint32_t threads : {0u, 31u, 33u, 544u}) {
    const Status status = device->launch(call, trInt32, DeviceProtocol::kLl, threads, nullptr);
    EXPECT_EQ(status.code(), trInvalidArgument) << threads;
    EXPECT_NE(status.message().find(std::to_string(threads)), std::string::npos) << status.message();
  }
  const auto refused = [&](trDataType_t type, DeviceProtocol protocol, const std::string& message) {
    const Status status = device->launch(call, type, protocol, 32, nullptr);
    EXPECT_EQ(status.code(), trInvalidArgument);
    EXPECT_EQ(status.message(), "GPU 0: " + message);
  };
  refused(static_cast<trDataType_t>(20), DeviceProtocol::kLl, "no kernels of data type 20");
  refused(static_cast<trDataType_t>(-1), DeviceProtocol::kLl, "no kernel of data type -1 and protocol ll");
  refused(trInt32, static_cast<DeviceProtocol>(7), "no kernel of data type int32 and protocol 7");
  call.channels = kMaxDeviceChannels + 1;
  EXPECT_EQ(device->launch(call, trInt32, DeviceProtocol::kLl, 64, nullptr).message(),
            "33 channels; a kernel has at most 32");
  call.channels = 3;
  fake_cuda().fail_next("cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(device->launch(call, trInt32, DeviceProtocol::kLl, 64, nullptr).message(),
            "cuLaunchKernel of 3 blocks of 64 threads on GPU 0: CUDA_ERROR_LAUNCH_FAILED (as the fake driver says)");
}

}  // namespace
}  // namespace treering::cuda
