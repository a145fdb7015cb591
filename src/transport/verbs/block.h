// SPDX-License-Identifier: Apache-2.0
// Block: memory of a link that is registered with the devices of its rails: what the peer writes into, and the headers that this rank
// sends from.
//
// Shared memory, although no other process has it: a private page that is written to after a fork would move away from
// the device.
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "transport/verbs/devices/device.h"

namespace treering::verbs {

class Block {
 public:
  Block() = default;
  ~Block() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Status make(const Devices& devices, RailSet rails, size_t bytes) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
      return {trSystemError, fmt::format("{} KiB of memory: {}", bytes >> 10, std::strerror(errno))};
    base_ = static_cast<std::byte*>(base);
    bytes_ = bytes;
    return registered_.make(devices, rails, base, bytes,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
  }
  // A device must not write into memory that is given back.
  void end_registration() { registered_.end(); }
  std::byte* base() const { return base_; }
  const RailMemory& registered() const { return registered_; }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  RailMemory registered_;
};

}  // namespace treering::verbs
