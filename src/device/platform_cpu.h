// SPDX-License-Identifier: Apache-2.0
// Platform for tests without a GPU: see platform.h. A "block" is a few threads of this process.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>

#define TR_DEVICE inline
// A loop whose number of turns is known, or is not.
#define TR_UNROLL _Pragma("GCC unroll 32")
#define TR_ROLLED

namespace treering::cuda {

class Thread {
 public:
  // `delays`: nullptr, or what decides where the thread loses its processor.
  Thread(uint32_t index, uint32_t count, std::barrier<>* barrier, std::mt19937* delays)
      : index_(index), count_(count), barrier_(barrier), delays_(delays) {}
  uint32_t index() const { return index_; }
  uint32_t count() const { return count_; }
  void barrier() const {
    lose_time();
    if (count_ > 1) barrier_->arrive_and_wait();
  }
  void lose_time() const {
    if (delays_ == nullptr) return;
    const uint32_t value = (*delays_)() % 64;
    if (value < 8) std::this_thread::yield();
    if (value == 63) std::this_thread::sleep_for(std::chrono::microseconds((*delays_)() % 50));
  }

 private:
  uint32_t index_, count_;
  std::barrier<>* barrier_;
  std::mt19937* delays_;
};

inline uint64_t load_acquire(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_release(uint64_t* at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
inline uint32_t load_flag(const uint32_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void store_flag(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
// For memory that the threads of a block share and write at once.
inline void store_shared(uint32_t* at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
// A wait for a rank that is late, or never comes, leaves the processors to others.
inline void relax(uint32_t turn) {
  if (turn < 512)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(turn / 16, 200u)));
}

inline uint64_t load_pair(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline void store_pair(uint64_t* at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }

// One thread has a whole line.
inline constexpr uint32_t kLanesOfLine = 1;
inline constexpr uint32_t kWordsOfLane = 16;
inline bool true_for_line(bool value) { return value; }
inline bool try_read_line(const uint64_t* line, uint32_t, uint64_t flag, uint64_t* words, bool*) {
  if (__atomic_load_n(line + 15, __ATOMIC_ACQUIRE) != flag) return false;
  for (uint32_t w = 0; w < 15; ++w) words[w] = __atomic_load_n(line + w, __ATOMIC_RELAXED);
  return true;
}
inline void write_line(uint64_t* line, uint32_t, uint64_t flag, const uint64_t* words) {
  for (uint32_t w = 0; w < 15; ++w) __atomic_store_n(line + w, words[w], __ATOMIC_RELAXED);
  __atomic_store_n(line + 15, flag, __ATOMIC_RELEASE);
}

// Loads and stores of `kBytes` at an address that is a multiple of kBytes.
template <unsigned kBytes>
void load_words(uint64_t* words, const void* from) {
  std::memcpy(words, from, kBytes);
}
template <unsigned kBytes>
void store_words(void* to, const uint64_t* words) {
  std::memcpy(to, words, kBytes);
}

}  // namespace treering::cuda
