// SPDX-License-Identifier: Apache-2.0
// Streams and events of the backend's devices, on the fake driver: what is given to which driver call, and its errors.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "device/fake_backend.h"

namespace treering::cuda {
namespace {

struct Stream {
  explicit Stream(Device* of) : device(of) { EXPECT_TRUE(device->create_stream(&stream).ok()); }
  ~Stream() { EXPECT_TRUE(device->destroy_stream(stream).ok()); }
  Device* device;
  DeviceStream stream = nullptr;
};

TEST(Streams, WorkIsDoneInOrderAndEventsOrderStreams) {
  Device* device = fake_device();
  Stream a(device), b(device);
  void *host = nullptr, *memory = nullptr;
  ASSERT_TRUE(device->allocate_host(64, &host).ok());
  ASSERT_TRUE(device->allocate(64, &memory).ok());
  auto* word = static_cast<uint32_t*>(host);
  DeviceEvent event = nullptr;
  ASSERT_TRUE(device->create_event(&event).ok());
  static std::atomic<int> calls{0};
  word[1] = 41;
  ASSERT_TRUE(device->wait_value(&word[0], 5, a.stream).ok());
  ASSERT_TRUE(device->copy(memory, &word[1], 4, a.stream).ok());
  ASSERT_TRUE(device->record(event, a.stream).ok());
  ASSERT_TRUE(device->wait(b.stream, event).ok());
  ASSERT_TRUE(device->copy(&word[2], memory, 4, b.stream).ok());
  ASSERT_TRUE(device->call_host([](void* add) { calls += *static_cast<int*>(add); }, &word[1], b.stream).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, 0);
  __atomic_store_n(&word[0], 7, __ATOMIC_RELEASE);
  ASSERT_TRUE(device->synchronize(b.stream).ok());
  EXPECT_EQ(calls, 41);
  EXPECT_EQ(word[2], 41u);
  // For no bytes the driver is not even asked.
  const int copies = fake_cuda().calls_of("cuMemcpyAsync");
  EXPECT_TRUE(device->copy(nullptr, nullptr, 0, a.stream).ok());
  EXPECT_EQ(fake_cuda().calls_of("cuMemcpyAsync"), copies);
  EXPECT_TRUE(device->destroy_event(event).ok());
  EXPECT_TRUE(device->free(memory).ok());
  EXPECT_TRUE(device->free_host(host).ok());
}

TEST(Streams, AreAskedWithoutWaiting) {
  Device* device = fake_device();
  Stream stream(device);
  bool done = false;
  EXPECT_TRUE(device->query(stream.stream, &done).ok());
  EXPECT_TRUE(done);
  void* host = nullptr;
  ASSERT_TRUE(device->allocate_host(64, &host).ok());
  auto* word = static_cast<uint32_t*>(host);
  ASSERT_TRUE(device->wait_value(word, 1, stream.stream).ok());
  EXPECT_TRUE(device->query(stream.stream, &done).ok());
  EXPECT_FALSE(done);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  ASSERT_TRUE(device->synchronize(stream.stream).ok());
  EXPECT_TRUE(device->query(stream.stream, &done).ok());
  EXPECT_TRUE(done);
  EXPECT_TRUE(device->free_host(host).ok());
}

TEST(Streams, TheDefaultStreamAndThoseOfOtherDevices) {
  Device *first = fake_device(0), *second = fake_device(1);
  EXPECT_TRUE(first->synchronize(nullptr).ok());
  Stream stream(second);
  EXPECT_NE(first->synchronize(stream.stream).message().find("cuStreamSynchronize on GPU 0: CUDA_ERROR_INVALID_HANDLE"),
            std::string::npos);
}

TEST(Streams, FailuresNameTheCall) {
  Device* device = fake_device();
  Stream stream(device);
  DeviceEvent event = nullptr;
  DeviceStream made = nullptr;
  ASSERT_TRUE(device->create_event(&event).ok());
  const uint32_t word = 1;
  bool done = false;
  const std::pair<const char*, std::function<Status()>> calls[] = {
      {"cuStreamCreate", [&] { return device->create_stream(&made); }},
      {"cuStreamDestroy", [&] { return device->destroy_stream(stream.stream); }},
      {"cuEventCreate", [&] { return device->create_event(&made); }},
      {"cuEventDestroy", [&] { return device->destroy_event(event); }},
      {"cuEventRecord", [&] { return device->record(event, stream.stream); }},
      {"cuStreamWaitEvent", [&] { return device->wait(stream.stream, event); }},
      {"cuStreamWaitEvent", [&] { return device->wait_external(stream.stream, event); }},
      {"cuEventRecordWithFlags", [&] { return device->record_external(event, stream.stream); }},
      {"cuStreamSynchronize", [&] { return device->synchronize(stream.stream); }},
      {"cuStreamQuery", [&] { return device->query(stream.stream, &done); }},
      {"cuLaunchHostFunc", [&] { return device->call_host([](void*) {}, nullptr, stream.stream); }},
      {"cuStreamWaitValue32", [&] { return device->wait_value(&word, 1, stream.stream); }},
  };
  for (const auto& [function, call] : calls) {
    fake_cuda().fail_next(function, CUDA_ERROR_NOT_SUPPORTED);
    const Status status = call();
    EXPECT_EQ(status.code(), trDeviceError);
    EXPECT_EQ(status.message(),
              std::string(function) + " on GPU 0: CUDA_ERROR_NOT_SUPPORTED (as the fake driver says)");
  }
  EXPECT_TRUE(device->destroy_event(event).ok());
}

TEST(Streams, CaptureIsSeen) {
  Device* device = fake_device();
  Stream stream(device);
  using Push = CUresult (*)(CUcontext);
  using Retain = CUresult (*)(CUcontext*, CUdevice);
  using Begin = CUresult (*)(CUstream, CUstreamCaptureMode);
  using End = CUresult (*)(CUstream, CUgraph*);
  CUcontext context = nullptr;
  ASSERT_EQ(reinterpret_cast<Retain>(fake_function("cuDevicePrimaryCtxRetain"))(&context, 100), CUDA_SUCCESS);
  std::thread([&] {
    reinterpret_cast<Push>(fake_function("cuCtxPushCurrent_v2"))(context);
    auto* captured = static_cast<CUstream>(stream.stream);
    EXPECT_FALSE(device->is_capturing(stream.stream));
    EXPECT_EQ(
        reinterpret_cast<Begin>(fake_function("cuStreamBeginCapture_v2"))(captured, CU_STREAM_CAPTURE_MODE_GLOBAL),
        CUDA_SUCCESS);
    EXPECT_TRUE(device->is_capturing(stream.stream));
    fake_cuda().fail_next("cuStreamGetCaptureInfo", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_FALSE(device->is_capturing(stream.stream));
    DeviceEvent event = nullptr;
    EXPECT_TRUE(device->create_event(&event).ok());
    // What was recorded elsewhere is waited for by a node, not by an edge.
    EXPECT_NE(device->wait(stream.stream, event).message().find("CAPTURE_ISOLATION"), std::string::npos);
    EXPECT_TRUE(device->wait_external(stream.stream, event).ok());
    EXPECT_TRUE(device->record_external(event, stream.stream).ok());
    EXPECT_TRUE(device->record(event, stream.stream).ok());
    EXPECT_TRUE(device->wait(stream.stream, event).ok());
    CUgraph graph = nullptr;
    EXPECT_EQ(reinterpret_cast<End>(fake_function("cuStreamEndCapture"))(captured, &graph), CUDA_SUCCESS);
    EXPECT_FALSE(device->is_capturing(stream.stream));
    EXPECT_FALSE(device->record_external(event, stream.stream).ok());
    EXPECT_FALSE(device->wait_external(stream.stream, event).ok());
    EXPECT_TRUE(device->destroy_event(event).ok());
  }).join();
}

}  // namespace
}  // namespace treering::cuda
