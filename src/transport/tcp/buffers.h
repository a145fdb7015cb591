// SPDX-License-Identifier: Apache-2.0
// TcpBuffers: memory of messages, in sizes of powers of two; what was given back is given out again.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace treering {

class TcpBuffers {
 public:
  // `most`: that are out at the same time; of more, giving back may allocate.
  explicit TcpBuffers(size_t most) {
    for (auto& free : free_) free.reserve(most);
  }
  ~TcpBuffers() {
    for (auto& free : free_)
      for (std::byte* memory : free) operator delete[](memory, kAlignment);
  }
  TcpBuffers(const TcpBuffers&) = delete;
  TcpBuffers& operator=(const TcpBuffers&) = delete;

  static uint32_t size_class(uint32_t bytes) { return static_cast<uint32_t>(std::bit_width(bytes - 1)); }
  std::byte* take(uint32_t size_class) {
    auto& free = free_[size_class];
    if (free.empty()) {
      allocated_ += size_t{1} << size_class;
      return static_cast<std::byte*>(operator new[](size_t{1} << size_class, kAlignment));
    }
    std::byte* memory = free.back();
    free.pop_back();
    return memory;
  }
  void give_back(uint32_t size_class, std::byte* memory) { free_[size_class].push_back(memory); }
  size_t allocated() const { return allocated_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  std::vector<std::byte*> free_[33];
  size_t allocated_ = 0;
};

}  // namespace treering
