// DeviceProbe: proves that a GPU writes and reads the memory of another, and measures how fast, by copies on the GPU's own
// path to it: a nonce there and back, and some MiB there. Some tenths of a millisecond for each peer; a slow
// path takes some 50 milliseconds at most, or two copies.
#pragma once

#include <memory>
#include <vector>

#include "executor/cuda/choose.h"
#include "executor/device.h"

namespace treering {

class DeviceProbe {
 public:
  // `chunk` is the most that one copy writes. Measures the GPU's own memory and its path to the host.
  static Status create(Device* device, DeviceStream stream, size_t chunk, std::unique_ptr<DeviceProbe>* made);
  ~DeviceProbe();
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;

  // `word`: 8 bytes of the peer's memory that nobody else uses; `chunks`: as many bytes at each place, overwritten. An error
  // says what was read instead of what was written.
  Status measure(void* word, const std::vector<std::byte*>& chunks, cuda::LinkFigures* figures);
  double host_gbps() const { return host_gbps_; }

 private:
  DeviceProbe(Device* device, DeviceStream stream, size_t chunk) : device_(device), stream_(stream), chunk_(chunk) {}
  Status copy(void* to, const void* from, size_t bytes) { return device_->copy(to, from, bytes, stream_); }
  Status exchange_word(void* word, double* seconds);
  Status measure_rate(const std::vector<std::byte*>& chunks, double* gbps);
  Status write_chunks(const std::vector<std::byte*>& chunks, double* seconds);
  Status measure_host();

  Device* device_;
  DeviceStream stream_;
  size_t chunk_;
  std::byte* scratch_ = nullptr;  // of the device: the chunk, a word to send, a word that came back
  std::byte* pinned_ = nullptr;   // of the host
  double own_seconds_ = 0;        // a word in the GPU's own memory there and back
  double host_gbps_ = 0;
};

}  // namespace treering
