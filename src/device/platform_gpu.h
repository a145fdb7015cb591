// SPDX-License-Identifier: Apache-2.0
// Platform for GPUs of compute capability 7.5 and later: see platform.h.
#pragma once

#include <cstddef>
#include <cstdint>

#define TR_DEVICE __device__ __forceinline__
// A loop whose number of turns is known: its arrays are registers. One whose number is not.
#define TR_UNROLL _Pragma("unroll")
#define TR_ROLLED _Pragma("unroll 1")

namespace treering::cuda {

class Thread {
 public:
  TR_DEVICE uint32_t index() const { return threadIdx.x; }
  TR_DEVICE uint32_t count() const { return blockDim.x; }
  TR_DEVICE void barrier() const { __syncthreads(); }
  TR_DEVICE void lose_time() const {}
};

TR_DEVICE uint64_t load_acquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
TR_DEVICE void store_release(uint64_t* at, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
TR_DEVICE uint32_t load_flag(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
TR_DEVICE void store_flag(uint32_t* at, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
TR_DEVICE void store_shared(uint32_t* at, uint32_t value) { *static_cast<volatile uint32_t*>(at) = value; }
TR_DEVICE void relax(uint32_t) { __nanosleep(20); }

TR_DEVICE uint64_t load_pair(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
TR_DEVICE void store_pair(uint64_t* at, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Eight neighbouring threads have a line, 16 bytes each: one access of the warp, which NVLink and the memory of the GPU
// itself keep whole. They are brought together before each access, because threads of a warp may run apart.
inline constexpr uint32_t kLanesOfLine = 8;
inline constexpr uint32_t kWordsOfLane = 2;
// Whether it is true for all threads that share the line, which have to go on, or to give up, together.
// Computed anew each time: a register that held it through everything in between is one too many.
TR_DEVICE uint32_t mask_of_line() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return 0xffu << (thread & 24u);
}
TR_DEVICE bool true_for_line(bool value) { return __all_sync(mask_of_line(), value) != 0; }
// Callers repeat it until it is true. What a thread loaded may be older than the flag that another saw: once all know
// that the flag is there (`seen`), they load again.
TR_DEVICE bool try_read_line(const uint64_t* line, uint32_t lane, uint64_t flag, uint64_t* words, bool* seen) {
  __syncwarp(mask_of_line());
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(line + 2 * lane)
               : "memory");
  if (*seen) return true;
  *seen = true_for_line(lane != 7 || words[1] == flag);
  return false;
}
TR_DEVICE void write_line(uint64_t* line, uint32_t lane, uint64_t flag, const uint64_t* words) {
  const uint64_t second = lane == 7 ? flag : words[1];
  __syncwarp(mask_of_line());
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(line + 2 * lane), "l"(words[0]), "l"(second)
               : "memory");
}

template <unsigned kBytes>
TR_DEVICE void load_words(uint64_t* words, const void* from) {
  if constexpr (kBytes == 16) {
    const auto value = *static_cast<const ulonglong2*>(from);
    words[0] = value.x;
    words[1] = value.y;
  } else {
    static_assert(kBytes == 8);
    words[0] = *static_cast<const uint64_t*>(from);
  }
}
template <unsigned kBytes>
TR_DEVICE void store_words(void* to, const uint64_t* words) {
  if constexpr (kBytes == 16) {
    *static_cast<ulonglong2*>(to) = make_ulonglong2(words[0], words[1]);
  } else {
    static_assert(kBytes == 8);
    *static_cast<uint64_t*>(to) = words[0];
  }
}

}  // namespace treering::cuda
