// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda_driver.h"
#include "memory.h"

namespace treering::perf {
namespace {

class GpuMemory : public Memory {
 public:
  explicit GpuMemory(int ordinal) : ordinal_(ordinal) {}

  std::string open(size_t bytes, trComm_t comm) override;
  std::string leave(trComm_t comm) override;
  std::string close() override;
  std::string set(void* at, unsigned char value, size_t bytes) override;
  std::string write(void* to, size_t bytes, const Make& make) override;
  std::string read(const void* from, size_t bytes, const Look& look) override;
  std::string begin_capture() override;
  std::string end_capture() override;
  std::string launch() override;
  std::string drop_graph() override;

 private:
  std::string take_context();

  int ordinal_;
  const CudaDriver* driver_ = nullptr;
  int device_ = 0;
  CudaHandle cuda_stream_ = nullptr;
  CudaHandle graph_ = nullptr;  // ready to be launched
  std::vector<char> copy_;
};

// The primary context, as the CUDA runtime uses it, is this thread's until close().
std::string GpuMemory::take_context() {
  std::string error;
  driver_ = open_cuda_driver(&error);
  if (driver_ == nullptr) return error;
  CudaHandle context = nullptr;
  error = driver_->error_of(driver_->device_of(&device_, ordinal_), "cuDeviceGet");
  if (error.empty()) error = driver_->error_of(driver_->retain_context(&context, device_), "cuDevicePrimaryCtxRetain");
  return error.empty() ? driver_->error_of(driver_->push_context(context), "cuCtxPushCurrent") : error;
}

std::string GpuMemory::open(size_t bytes, trComm_t) {
  bytes_ = bytes;
  std::string error = take_context();
  if (!error.empty()) return error;
  error = driver_->error_of(driver_->create_stream(&cuda_stream_, kNonBlockingStream), "cuStreamCreate");
  if (error.empty()) error = perf::error_of(trStreamFromCuda(&stream_, ordinal_, cuda_stream_), "trStreamFromCuda");
  for (void*& buffer : buffers_)
    if (error.empty()) error = perf::error_of(trDeviceMemAlloc(&buffer, bytes, ordinal_), "trDeviceMemAlloc");
  return error;
}

std::string GpuMemory::leave(trComm_t) { return drop_graph(); }

std::string GpuMemory::close() {
  std::string error;
  for (void*& buffer : buffers_) {
    if (error.empty()) error = perf::error_of(trDeviceMemFree(buffer), "trDeviceMemFree");
    buffer = nullptr;
  }
  if (error.empty()) error = perf::error_of(trStreamDestroy(stream_), "trStreamDestroy");
  if (error.empty()) error = driver_->error_of(driver_->destroy_stream(cuda_stream_), "cuStreamDestroy");
  CudaHandle context = nullptr;
  if (error.empty()) error = driver_->error_of(driver_->pop_context(&context), "cuCtxPopCurrent");
  return error.empty() ? driver_->error_of(driver_->release_context(device_), "cuDevicePrimaryCtxRelease") : error;
}

std::string GpuMemory::set(void* at, unsigned char value, size_t bytes) {
  if (bytes == 0) return "";
  const auto address = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(at));
  const std::string error =
      driver_->error_of(driver_->set_bytes(address, value, bytes, cuda_stream_), "cuMemsetD8Async");
  return error.empty() ? perf::error_of(trStreamSynchronize(stream_), "trStreamSynchronize") : error;
}

std::string GpuMemory::write(void* to, size_t bytes, const Make& make) {
  for (size_t at = 0; at < bytes; at += kStepBytes) {
    const size_t length = std::min(bytes - at, kStepBytes);
    copy_.resize(std::max(copy_.size(), length));
    make(copy_.data(), at, length);
    const trResult_t copied = trDeviceMemCopy(static_cast<char*>(to) + at, copy_.data(), length, stream_);
    if (copied != trSuccess) return perf::error_of(copied, "trDeviceMemCopy");
  }
  return "";
}

std::string GpuMemory::read(const void* from, size_t bytes, const Look& look) {
  for (size_t at = 0; at < bytes; at += kStepBytes) {
    const size_t length = std::min(bytes - at, kStepBytes);
    copy_.resize(std::max(copy_.size(), length));
    const trResult_t copied = trDeviceMemCopy(copy_.data(), static_cast<const char*>(from) + at, length, stream_);
    if (copied != trSuccess) return perf::error_of(copied, "trDeviceMemCopy");
    look(copy_.data(), at, length);
  }
  return "";
}

std::string GpuMemory::begin_capture() {
  const std::string error = drop_graph();
  if (!error.empty()) return error;
  return driver_->error_of(driver_->begin_capture(cuda_stream_, kCaptureOfThread), "cuStreamBeginCapture");
}

std::string GpuMemory::end_capture() {
  CudaHandle captured = nullptr;
  std::string error = driver_->error_of(driver_->end_capture(cuda_stream_, &captured), "cuStreamEndCapture");
  if (error.empty()) error = driver_->error_of(driver_->instantiate_graph(&graph_, captured, 0), "cuGraphInstantiate");
  return error.empty() ? driver_->error_of(driver_->destroy_graph(captured), "cuGraphDestroy") : error;
}

std::string GpuMemory::launch() {
  return driver_->error_of(driver_->launch_graph(graph_, cuda_stream_), "cuGraphLaunch");
}

std::string GpuMemory::drop_graph() {
  const CudaHandle graph = graph_;
  graph_ = nullptr;
  return graph == nullptr ? "" : driver_->error_of(driver_->destroy_executable(graph), "cuGraphExecDestroy");
}

}  // namespace

std::unique_ptr<Memory> make_gpu_memory(int gpu) { return std::make_unique<GpuMemory>(gpu); }

}  // namespace treering::perf
