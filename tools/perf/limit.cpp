// SPDX-License-Identifier: Apache-2.0
#include "limit.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace treering::perf {
namespace {

void copy_ordinary(const void* from, void* to, size_t bytes) { std::memcpy(to, from, bytes); }

#if defined(__SSE2__)
void copy_non_temporal(const void* from, void* to, size_t bytes) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  const size_t head = std::min(bytes, (64 - reinterpret_cast<uintptr_t>(target) % 64) % 64);
  std::memcpy(target, source, head);
  size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    const auto* in = reinterpret_cast<const __m128i*>(source + at);
    auto* out = reinterpret_cast<__m128i*>(target + at);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(target + at, source + at, bytes - at);
  _mm_sfence();
}
#endif

using Copy = void (*)(const void*, void*, size_t);

// The slowest rank's time of one copy, the best of several turns.
double best_time_us(RankGroup& group, Copy copy, const void* from, void* to, size_t bytes) {
  const size_t repeats = std::clamp<size_t>((size_t{4} << 20) / std::max<size_t>(bytes, 1), 1, 20000);
  double best_us = 1e300;
  for (int turn = 0; turn < 5; ++turn) {
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < repeats; ++i) {
      copy(from, to, bytes);
      __asm__ volatile("" ::: "memory");  // or the repeats would be folded into one
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    const auto all = group.gather(took.count() / static_cast<double>(repeats));
    best_us = std::min(best_us, *std::max_element(all.begin(), all.end()));
  }
  return best_us;
}

}  // namespace

double measure_copy_bandwidth(RankGroup& group, const void* from, void* to, size_t bytes) {
  double best_us = best_time_us(group, copy_ordinary, from, to, bytes);
#if defined(__SSE2__)
  if (bytes >= size_t{256} << 10) best_us = std::min(best_us, best_time_us(group, copy_non_temporal, from, to, bytes));
#endif
  return best_us > 0 ? 2.0 * group.ranks() * static_cast<double>(bytes) / 1e9 / (best_us * 1e-6) : 0;
}

}  // namespace treering::perf
