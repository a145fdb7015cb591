// SPDX-License-Identifier: Apache-2.0
// Memory: where the two buffers of a rank lie, and the stream that its calls go to.
//
//   HostMemory   malloc, registered or of trMemAlloc(); no stream, or one of the library
//   GpuMemory    trDeviceMemAlloc(); a CUDA stream, which can be captured into a graph
//
// Used by the rank's own thread alone. What returns a text returns "" when all is well, else what failed.
#pragma once

#include <treering/treering.h>

#include <functional>
#include <memory>
#include <string>

#include "options.h"

namespace treering::perf {

// The text for a call of the library.
std::string error_of(trResult_t result, const char* call, trComm_t comm = nullptr);

class Memory {
 public:
  virtual ~Memory() = default;

  // The buffers, of `bytes` zeroed bytes each, and the stream.
  virtual std::string open(size_t bytes, trComm_t comm) = 0;
  // What belongs to the communicator, before it ends; nothing is under way.
  virtual std::string leave(trComm_t comm) = 0;
  // The rest, when it has ended.
  virtual std::string close() = 0;

  virtual std::string set(void* at, unsigned char value, size_t bytes) = 0;
  // Gives memory of the host that stands for the bytes from `offset` on, part after part; parts begin at multiples
  // of kStepBytes. What write() is given is then in the buffer, what read() gives is what is there.
  using Make = std::function<void(char* part, size_t offset, size_t bytes)>;
  using Look = std::function<void(const char* part, size_t offset, size_t bytes)>;
  virtual std::string write(void* to, size_t bytes, const Make& make) = 0;
  virtual std::string read(const void* from, size_t bytes, const Look& look) = 0;

  // Between the two, calls go into a graph, which takes the place of the one before.
  virtual std::string begin_capture() = 0;
  virtual std::string end_capture() = 0;
  virtual std::string launch() = 0;
  virtual std::string drop_graph() = 0;

  char* send() const { return static_cast<char*>(buffers_[0]); }
  char* recv() const { return static_cast<char*>(buffers_[1]); }
  size_t bytes() const { return bytes_; }
  trStream_t stream() const { return stream_; }

  static constexpr size_t kStepBytes = size_t{16} << 20;  // whole elements of every type

 protected:
  void* buffers_[2] = {nullptr, nullptr};
  size_t bytes_ = 0;
  trStream_t stream_ = nullptr;
};

// `gpu`: that of the rank, for GPU memory.
std::unique_ptr<Memory> make_memory(const Options& options, int gpu);
std::unique_ptr<Memory> make_gpu_memory(int gpu);

}  // namespace treering::perf
