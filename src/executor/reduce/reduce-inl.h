// SPDX-License-Identifier: Apache-2.0
// The body of every reduction kernel, compiled once for each target by the files that include it.
//
// A kernel is a Type times an Op (reduce_types-inl.h). It walks the elements in chunks of kUnroll vectors:
//
//   source 0   [v v v v v v v v]   loaded into kUnroll accumulators
//   source 1   [v v v v v v v v]   combined into them, and so on for all sources
//   destination 0, 1, ...          the accumulators are stored to each
//
// so every byte crosses the memory bus once, however many sources and destinations there are, and a 16-bit
// float stays in float32 from the first source to the last. All loads of a chunk come before its stores,
// which is what lets a destination be identical to a source. What is left over goes through single vectors,
// the last one masked; targets without masks go on with 128-bit vectors and single elements.

// Highway includes this file once for each target, hence the toggle in place of #pragma once.
#if defined(TREERING_EXECUTOR_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREERING_EXECUTOR_REDUCE_INL_H_
#undef TREERING_EXECUTOR_REDUCE_INL_H_
#else
#define TREERING_EXECUTOR_REDUCE_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "executor/reduce/reduce_kernels.h"
#include "executor/reduce/reduce_types-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace treering {
namespace HWY_NAMESPACE {

inline constexpr size_t kUnroll = 8;
inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kMaskBits = 64;
inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kPages = 4;
inline constexpr size_t kPagesMaxArrays = 5;

enum class Finish { kNone, kMultiply, kDivide };

// Truncates toward zero. Exact through double: the quotient of two integers of up to 32 bits that is no
// integer is further from the next one than a double's rounding error.
template <class T>
HWY_NOINLINE void divide_integers(T* values, size_t count, uint32_t divisor) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 8) {
      values[i] /= static_cast<T>(divisor);
    } else {
      using Quotient = std::conditional_t<std::is_same_v<T, uint32_t>, uint32_t, int32_t>;
      values[i] = static_cast<T>(static_cast<Quotient>(static_cast<double>(values[i]) / divisor));
    }
  }
}

// One call, with what does not change from chunk to chunk worked out.
struct Walk {
  const ReduceCall& call;
  Finish finish = Finish::kNone;
  double factor = 1;  // of kMultiply and kDivide
  double scale = 1;   // of scaled sources; integers: integer_scale
  uint64_t integer_scale = 1;
  uint64_t streaming = 0;  // destinations that are written with non-temporal stores and are aligned for it
};

HWY_INLINE bool has_bit(uint64_t mask, size_t i) { return i < kMaskBits && ((mask >> i) & 1) != 0; }

template <class Type>
HWY_INLINE size_t element_bytes(bool wide) {
  return Type::kNarrow && wide ? sizeof(float) : Type::kBytes;
}

template <class D, size_t kVectors>
HWY_INLINE void scale_source(D d, const Walk& walk, uint8_t flags, hn::Vec<D> (&values)[kVectors]) {
  if (HWY_LIKELY((flags & kScaledSource) == 0)) return;
  using T = Lane<D>;
  const auto factor = hn::Set(d, hwy::IsFloat<T>() ? static_cast<T>(walk.scale) : static_cast<T>(walk.integer_scale));
  for (size_t j = 0; j < kVectors; ++j) values[j] = Prod::combine(values[j], factor);
}

template <class Type, class Part, class D, size_t kVectors>
HWY_INLINE void load_source(D d, const Walk& walk, size_t source, size_t element, Part part,
                            hn::Vec<D> (&out)[kVectors]) {
  const size_t lanes = hn::Lanes(d);
  const auto* base = static_cast<const uint8_t*>(walk.call.sources[source]);
  const uint8_t flags = walk.call.flags_of(source);
  if constexpr (Type::kNarrow) {
    const hn::Rebind<typename Type::Storage, D> narrow;
    if (!Type::kFlagged || (flags & kWideSource) == 0) {
      for (size_t j = 0; j < kVectors; ++j)
        out[j] = Type::widen(d, load_any(narrow, base + (element + j * lanes) * Type::kBytes, part));
    } else {
      for (size_t j = 0; j < kVectors; ++j) out[j] = load_any(d, base + (element + j * lanes) * sizeof(float), part);
    }
    if (!Type::kFlagged || HWY_LIKELY((flags & (kScaledSource | kRoundedSource)) == 0)) return;
    scale_source(d, walk, flags, out);
    for (size_t j = 0; j < kVectors; ++j) out[j] = Type::widen(d, Type::narrow(d, out[j]));
  } else {
    for (size_t j = 0; j < kVectors; ++j) out[j] = load_any(d, base + (element + j * lanes) * sizeof(Lane<D>), part);
    scale_source(d, walk, flags, out);
  }
}

template <class Part, class D, size_t kVectors>
HWY_INLINE void store_vectors(D d, const hn::Vec<D> (&v)[kVectors], uint8_t* address, bool streaming, Part part) {
  const size_t bytes = hn::Lanes(d) * sizeof(Lane<D>);
  if (kVectors == kUnroll && streaming) {
    for (size_t j = 0; j < kVectors; ++j) stream_aligned(v[j], d, address + j * bytes);
    return;
  }
  for (size_t j = 0; j < kVectors; ++j) store_any(v[j], d, address + j * bytes, part);
}

template <class Type, class Part, class D, size_t kVectors>
HWY_INLINE void store_destinations(D d, const Walk& walk, size_t element, Part part,
                                   const hn::Vec<D> (&acc)[kVectors]) {
  const ReduceCall& call = walk.call;
  if constexpr (Type::kNarrow) {
    const hn::Rebind<typename Type::Storage, D> d_narrow;
    hn::Vec<decltype(d_narrow)> narrow[kVectors];
    for (size_t j = 0; j < kVectors; ++j) narrow[j] = Type::narrow(d, acc[j]);
    hn::Vec<D> wide[kVectors];
    for (size_t j = 0; j < kVectors; ++j) wide[j] = call.round_wide ? Type::widen(d, narrow[j]) : acc[j];
    for (size_t k = 0; k < call.destination_count; ++k) {
      auto* base = static_cast<uint8_t*>(call.destinations[k]);
      const bool streaming = has_bit(walk.streaming, k);
      if (has_bit(call.wide_destinations, k)) {
        store_vectors(d, wide, base + element * sizeof(float), streaming, part);
      } else {
        store_vectors(d_narrow, narrow, base + element * Type::kBytes, streaming, part);
      }
    }
  } else {
    for (size_t k = 0; k < call.destination_count; ++k) {
      auto* base = static_cast<uint8_t*>(call.destinations[k]);
      store_vectors(d, acc, base + element * Type::kBytes, has_bit(walk.streaming, k), part);
    }
  }
}

template <class D, size_t kVectors>
HWY_INLINE void finish_chunk(D d, const Walk& walk, hn::Vec<D> (&acc)[kVectors]) {
  using T = Lane<D>;
  if constexpr (hwy::IsFloat<T>()) {
    const auto factor = hn::Set(d, static_cast<T>(walk.factor));
    for (size_t j = 0; j < kVectors; ++j)
      acc[j] = walk.finish == Finish::kDivide ? hn::Div(acc[j], factor) : hn::Mul(acc[j], factor);
  } else {
    constexpr size_t kLanes = hn::MaxLanes(D());
    HWY_ALIGN T values[HWY_MAX(kVectors * kLanes, 16 / sizeof(T))];
    for (size_t j = 0; j < kVectors; ++j) hn::Store(acc[j], d, values + j * kLanes);
    divide_integers(values, kVectors * kLanes, walk.call.divisor);
    for (size_t j = 0; j < kVectors; ++j) acc[j] = hn::Load(d, values + j * kLanes);
  }
}

// Reduces kVectors vectors of elements from `element` on.
template <class Type, class Op, size_t kVectors, class D, class Part>
HWY_INLINE void reduce_chunk(D d, const Walk& walk, size_t element, Part part) {
  using V = hn::Vec<D>;
  V acc[kVectors];
  load_source<Type>(d, walk, 0, element, part, acc);
  for (size_t s = 1; s < walk.call.source_count; ++s) {
    V next[kVectors];
    load_source<Type>(d, walk, s, element, part, next);
    for (size_t j = 0; j < kVectors; ++j) acc[j] = Op::combine(acc[j], next[j]);
  }
  if constexpr (Op::kDivides) {
    if (walk.finish != Finish::kNone) finish_chunk(d, walk, acc);
  }
  store_destinations<Type>(d, walk, element, part, acc);
}

// Elements [element, end), fewer than a chunk or at an address that the large stores cannot use.
template <class Type, class Op>
HWY_NOINLINE void reduce_rest(const Walk& walk, size_t element, size_t end) {
  using T = typename Type::Compute;
  const hn::ScalableTag<T> full;
  for (; end - element >= hn::Lanes(full); element += hn::Lanes(full))
    reduce_chunk<Type, Op, 1>(full, walk, element, Whole());
  if (element == end) return;
  if constexpr (kHasMasks) {
    reduce_chunk<Type, Op, 1>(full, walk, element, First{end - element});
  } else {
    const hn::CappedTag<T, 16 / sizeof(T)> quarter;
    const hn::CappedTag<T, 1> single;
    if constexpr (hn::MaxLanes(full) > hn::MaxLanes(quarter)) {
      for (; end - element >= hn::Lanes(quarter); element += hn::Lanes(quarter))
        reduce_chunk<Type, Op, 1>(quarter, walk, element, Whole());
    }
    for (; element < end; ++element) reduce_chunk<Type, Op, 1>(single, walk, element, Whole());
  }
}

// Elements before the first streaming destination reaches a cache line; walk.streaming receives the
// destinations that are aligned from there on. None, and no head, where fewer than a chunk would follow.
template <class Type>
HWY_INLINE size_t align_streaming(Walk& walk, size_t chunk) {
  const ReduceCall& call = walk.call;
  size_t head = SIZE_MAX;
  for (size_t k = 0; k < call.destination_count; ++k) {
    if (!has_bit(call.streaming, k)) continue;
    const size_t bytes = element_bytes<Type>(has_bit(call.wide_destinations, k));
    const size_t gap = (0 - reinterpret_cast<uintptr_t>(call.destinations[k])) % kLineBytes;
    if (head == SIZE_MAX && gap % bytes == 0) head = gap / bytes;
    if (head == SIZE_MAX) continue;
    const uintptr_t start = reinterpret_cast<uintptr_t>(call.destinations[k]) + head * bytes;
    if (start % kLineBytes == 0) walk.streaming |= uint64_t{1} << k;
  }
  if (head <= call.count - chunk) return head;
  walk.streaming = 0;
  return 0;
}

// Fetches the chunk at `element` of every source into the cache. Past the end of an array this does nothing.
template <class Type>
HWY_INLINE void prefetch_chunk(const Walk& walk, size_t element, size_t chunk) {
  for (size_t s = 0; s < walk.call.source_count; ++s) {
    const size_t bytes = element_bytes<Type>((walk.call.flags_of(s) & kWideSource) != 0);
    const uintptr_t start = reinterpret_cast<uintptr_t>(walk.call.sources[s]) + element * bytes;
    for (uintptr_t line = start; line < start + chunk * bytes; line += kLineBytes)
      hwy::Prefetch(reinterpret_cast<const uint8_t*>(line));
  }
}

// Few large arrays in memory: kPages pages of each advance side by side, and what the next group of pages
// needs is fetched ahead. One page at a time leaves banks of the memory idle, and a copy is a third slower;
// many arrays keep them busy by themselves. Returns the first element that is left over.
template <class Type, class Op>
HWY_INLINE size_t reduce_pages(const Walk& walk, size_t element) {
  const hn::ScalableTag<typename Type::Compute> d;
  const size_t chunk = kUnroll * hn::Lanes(d);
  constexpr size_t kPageElements = kPageBytes / Type::kBytes;
  constexpr size_t kGroup = kPages * kPageElements;
  for (; walk.call.count - element >= kGroup; element += kGroup) {
    for (size_t offset = 0; offset < kPageElements; offset += chunk) {
      for (size_t page = 0; page < kPages; ++page) {
        const size_t at = element + page * kPageElements + offset;
        prefetch_chunk<Type>(walk, at + kGroup, chunk);
        reduce_chunk<Type, Op, kUnroll>(d, walk, at, Whole());
      }
    }
  }
  return element;
}

template <class Type, class Op>
HWY_INLINE void reduce_all(Walk walk) {
  const hn::ScalableTag<typename Type::Compute> d;
  const size_t chunk = kUnroll * hn::Lanes(d);
  const size_t count = walk.call.count;
  size_t element = 0;
  if (walk.call.streaming != 0 && count >= chunk) {
    element = align_streaming<Type>(walk, chunk);
    if (element != 0) reduce_rest<Type, Op>(walk, 0, element);
    const size_t arrays = walk.call.source_count + walk.call.destination_count;
    if (walk.streaming != 0 && arrays <= kPagesMaxArrays) element = reduce_pages<Type, Op>(walk, element);
  }
  for (; count - element >= chunk; element += chunk) reduce_chunk<Type, Op, kUnroll>(d, walk, element, Whole());
  if (element != count) reduce_rest<Type, Op>(walk, element, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace treering
HWY_AFTER_NAMESPACE();

#endif  // toggle
