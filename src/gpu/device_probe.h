// SPDX-License-Identifier: Apache-2.0
// DeviceProbe: proves that a GPU writes and reads the memory of another, and measures how fast, by copies on the GPU's
// own path to it: a nonce there and back, and some MiB there. Some tenths of a millisecond for each peer; a slow
// path takes some 50 milliseconds at most, or two copies.
#pragma once

#include <memory>
#include <vector>

#include "device/choose.h"
#include "gpu/device_copies.h"

namespace treering {

class DeviceProbe {
 public:
  // What one copy writes at most, and the buffers that the copies must have for it.
  static constexpr size_t kChunkBytes = 512 << 10, kBufferBytes = kChunkBytes + 4 * sizeof(uint64_t);
  // Measures the GPU's own memory and its path to the host.
  static Status create(DeviceCopies* copies, std::unique_ptr<DeviceProbe>* made);

  // `word`: 8 bytes of the peer's memory that nothing else uses; `chunks`: kChunkBytes at each place, overwritten. An
  // error says what was read instead of what was written.
  Status measure(void* word, const std::vector<std::byte*>& chunks, cuda::LinkFigures* figures);
  double host_gbps() const { return host_gbps_; }

 private:
  explicit DeviceProbe(DeviceCopies* copies) : copies_(copies) {}
  // A word of the buffers behind the chunk.
  static std::byte* word_of(std::byte* buffer, size_t i) { return buffer + kChunkBytes + i * sizeof(uint64_t); }
  Status write_word(void* to, uint64_t word);
  Status read_word(const void* from, uint64_t* word);
  Status exchange_word(void* word, double* seconds);
  Status measure_rate(const std::vector<std::byte*>& chunks, double* gbps);
  Status write_chunks(const std::vector<std::byte*>& chunks, double* seconds);
  Status measure_host();

  DeviceCopies* copies_;
  double own_seconds_ = 0;  // a word in the GPU's own memory there and back
  double host_gbps_ = 0;
};

}  // namespace treering
