// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <cstdlib>
#include <cstring>

namespace treering::perf {
namespace {

class HostMemory : public Memory {
 public:
  HostMemory(Buffers kind, bool with_stream) : kind_(kind), with_stream_(with_stream) {}

  std::string open(size_t bytes, trComm_t comm) override;
  std::string leave(trComm_t comm) override;
  std::string close() override;

  std::string set(void* at, unsigned char value, size_t bytes) override {
    std::memset(at, value, bytes);
    return "";
  }
  std::string write(void* to, size_t bytes, const Make& make) override {
    make(static_cast<char*>(to), 0, bytes);
    return "";
  }
  std::string read(const void* from, size_t bytes, const Look& look) override {
    look(static_cast<const char*>(from), 0, bytes);
    return "";
  }

  std::string begin_capture() override { return kNoGraphs; }
  std::string end_capture() override { return kNoGraphs; }
  std::string launch() override { return kNoGraphs; }
  std::string drop_graph() override { return ""; }

 private:
  static constexpr const char* kNoGraphs = "calls on host memory cannot be captured";

  Buffers kind_;
  bool with_stream_;
  void* handles_[2] = {nullptr, nullptr};
};

std::string HostMemory::open(size_t bytes, trComm_t comm) {
  bytes_ = bytes;
  std::string error;
  if (with_stream_) error = error_of(trStreamCreate(&stream_), "trStreamCreate");
  for (void*& buffer : buffers_) {
    if (!error.empty()) return error;
    if (kind_ == Buffers::kMemAlloc)
      error = error_of(trMemAlloc(&buffer, bytes), "trMemAlloc");
    else if ((buffer = std::malloc(bytes)) == nullptr)
      error = "no memory for a buffer of " + std::to_string(bytes) + " bytes";
    if (buffer != nullptr)
      std::memset(buffer, 0, bytes);  // the pages are there, on this core's side, before anything is timed
  }
  for (int i = 0; i < 2 && error.empty() && kind_ == Buffers::kRegistered; ++i)
    error = error_of(trCommRegister(comm, buffers_[i], bytes, &handles_[i]), "trCommRegister", comm);
  return error;
}

std::string HostMemory::leave(trComm_t comm) {
  for (void*& handle : handles_) {
    const std::string error = handle ? error_of(trCommDeregister(comm, handle), "trCommDeregister", comm) : "";
    if (!error.empty()) return error;
    handle = nullptr;
  }
  const trStream_t stream = stream_;
  stream_ = nullptr;
  return stream ? error_of(trStreamDestroy(stream), "trStreamDestroy") : "";
}

std::string HostMemory::close() {
  for (void*& buffer : buffers_) {
    if (kind_ != Buffers::kMemAlloc)
      std::free(buffer);
    else if (const std::string error = error_of(trMemFree(buffer), "trMemFree"); !error.empty())
      return error;
    buffer = nullptr;
  }
  return "";
}

}  // namespace

std::string error_of(trResult_t result, const char* call, trComm_t comm) {
  if (result == trSuccess) return "";
  const char* message = comm != nullptr ? trGetLastError(comm) : "";
  if (*message == '\0') message = trGetLastError(nullptr);
  return std::string(call) + ": " + trGetErrorString(result) + ": " + message;
}

std::unique_ptr<Memory> make_memory(const Options& options, int gpu) {
  if (options.memory == MemoryKind::kGpu) return make_gpu_memory(gpu);
  return std::make_unique<HostMemory>(options.buffers, options.stream);
}

}  // namespace treering::perf
