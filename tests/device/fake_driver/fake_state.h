// SPDX-License-Identifier: Apache-2.0
// What the files of the fake driver share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/fake_driver/fake_cuda.h"

struct CUctx_st {
  int device;
};

// What a graph does is made anew by each of its launches.
using Maker = std::function<std::function<void()>()>;

// Into a graph, of one stream and those that wait for something in it.
struct Capture {
  uint64_t number;
  std::vector<Maker> work;
  std::vector<CUstream_st*> streams;
};

// Work in the order in which it was given, done by a thread.
struct CUstream_st {
  explicit CUstream_st(int device);
  ~CUstream_st();  // when everything is done
  void put(std::function<void()> work);
  void put_at_launch(Maker make) { capture->work.push_back(std::move(make)); }
  void drain();
  bool drain_for(std::chrono::seconds most);  // false: that takes longer
  bool is_drained();

  const int device;
  std::shared_ptr<Capture> capture;  // nullptr: nothing is captured

 private:
  void serve();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, ending_ = false;
  std::thread thread_;
};

namespace treering::cuda {

FakeCuda& fake();
// Counts the call; the error that a test wants of it, if any.
CUresult enter(const char* function);
// The device of the calling thread's context, -1: it has none.
int current_device();
// Whether the bytes are memory that kernels and copies of the current device may use.
bool is_usable(CUdeviceptr at, size_t bytes);
bool is_of_host(CUdeviceptr at);
// Memory of a device that cuMemMap made; device -1: it is gone.
void set_mapped_range(CUdeviceptr at, size_t bytes, int device);
bool is_device_handle(CUdevice device);
// The stream, or the default stream of the current device; nullptr: a stream of another device.
CUstream find_stream(CUstream stream);
// Waits for all streams of the device, or with -1 of all, as a driver may before it frees memory; in vain, it ends the
// process.
void drain_streams(int device);

}  // namespace treering::cuda

#define TR_ENTER(name) \
  if (const CUresult entered = treering::cuda::enter(#name); entered != CUDA_SUCCESS) return entered
#define TR_ENTER_CONTEXT(name) \
  TR_ENTER(name);              \
  if (treering::cuda::current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT
#define TR_ENTER_STREAM(name, stream) \
  TR_ENTER_CONTEXT(name);             \
  if ((stream = treering::cuda::find_stream(stream)) == nullptr) return CUDA_ERROR_INVALID_HANDLE
