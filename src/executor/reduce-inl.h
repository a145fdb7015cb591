// The body of every reduction kernel, compiled once for each target by the files that include it.
//
// A kernel is a Type (how an element is loaded, held and stored) times an Op (how two are combined). It walks
// the elements in chunks of kUnroll vectors:
//
//   source 0   [v v v v v v v v]   loaded into kUnroll accumulators
//   source 1   [v v v v v v v v]   combined into them, and so on for all sources
//   destination 0, 1, ...          the accumulators are stored to each
//
// so every byte crosses the memory bus once, however many sources and destinations there are, and a 16-bit
// float stays in float32 from the first source to the last. All loads of a chunk come before its stores,
// which is what lets a destination be identical to a source. What is left over goes through single vectors,
// then 128-bit ones, then single elements.

// Highway includes this file once for each target, hence the toggle in place of #pragma once.
#if defined(TREERING_EXECUTOR_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREERING_EXECUTOR_REDUCE_INL_H_
#undef TREERING_EXECUTOR_REDUCE_INL_H_
#else
#define TREERING_EXECUTOR_REDUCE_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "executor/reduce_kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace treering {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kUnroll = 8;
inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kMaskBits = 64;

template <class D>
using Lane = hn::TFromD<D>;

// Loads and stores that accept any address: a single element goes through memcpy, because Highway would
// dereference a typed pointer for it.
template <class D>
HWY_INLINE hn::Vec<D> load_any(D d, const uint8_t* address) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    HWY_ALIGN Lane<D> lanes[16 / sizeof(Lane<D>)] = {};
    std::memcpy(lanes, address, sizeof(Lane<D>));
    return hn::Load(d, lanes);
  } else {
    return hn::LoadU(d, reinterpret_cast<const Lane<D>*>(address));
  }
}

template <class D>
HWY_INLINE void store_any(hn::Vec<D> v, D d, uint8_t* address) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    HWY_ALIGN Lane<D> lanes[16 / sizeof(Lane<D>)];
    hn::Store(v, d, lanes);
    std::memcpy(address, lanes, sizeof(Lane<D>));
  } else {
    hn::StoreU(v, d, reinterpret_cast<Lane<D>*>(address));
  }
}

template <class D>
HWY_INLINE void stream_aligned(hn::Vec<D> v, D d, uint8_t* address) {
  if constexpr (hn::MaxLanes(D()) * sizeof(Lane<D>) < 16) {
    store_any(v, d, address);  // Highway would store a whole 128-bit vector
  } else {
    hn::Stream(v, d, reinterpret_cast<Lane<D>*>(address));
  }
}

// ---- Types ----

// An element that is computed with as it lies in memory.
template <class T>
struct Plain {
  using Compute = T;
  static constexpr bool kNarrow = false;
  static constexpr size_t kBytes = sizeof(T);
};

// bfloat16: the upper half of a float32.
struct Bfloat16 {
  using Compute = float;
  static constexpr bool kNarrow = true;
  static constexpr size_t kBytes = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* address) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, load_any(d16, address))));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> narrow([[maybe_unused]] D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> di32;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(d32, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd);
    const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));  // rounding could carry a NaN into infinity
    const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
    return hn::DemoteTo(d16, hn::BitCast(di32, hn::ShiftRight<16>(chosen)));
  }
};

// float16 (IEEE 754 binary16). Targets without conversion instructions use integer arithmetic, after F.
// Giesen, "float_to_half_fast3_rtne".
struct Float16 {
  using Compute = float;
  static constexpr bool kNarrow = true;
  static constexpr size_t kBytes = 2;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* address) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, load_any(d16, address)));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> narrow([[maybe_unused]] D d, hn::Vec<D> v) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::BitCast(d16, hn::DemoteTo(df16, v));
  }
#else
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t* address) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto half = hn::PromoteTo(d32, load_any(d16, address));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d32, 0x7fffu)));
    const auto scaled =
        hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));  // exact, denormals included
    const auto special = hn::Gt(magnitude, hn::Set(d32, (0x7c00u << 13) - 1));
    const auto exponent = hn::IfThenElseZero(special, hn::Set(d32, 0x7f800000u));
    return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(d32, scaled), exponent), sign));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> narrow([[maybe_unused]] D d, hn::Vec<D> v) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> di32;
    const auto bits = hn::BitCast(d32, v);
    const auto sign = hn::And(bits, hn::Set(d32, 0x80000000u));
    const auto magnitude = hn::Xor(bits, sign);
    // Below the smallest normal: the adder of this constant rounds to a multiple of the denormal spacing.
    const auto magic = hn::Set(d32, ((127u - 15) + (23 - 10) + 1) << 23);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic));
    const auto denormal = hn::Sub(hn::BitCast(d32, sum), magic);
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1u));
    const auto biased = hn::Sub(hn::Add(magnitude, hn::Set(d32, 0xfffu)), hn::Set(d32, (127u - 15) << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(biased, odd));
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x3ffu));
    const auto nan = hn::Or(payload, hn::Set(d32, 0x7e00u));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, 113u << 23)), denormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, (143u << 23) - 1)), hn::Set(d32, 0x7c00u), result);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7f800000u)), nan, result);
    result = hn::Or(result, hn::ShiftRight<16>(sign));
    return hn::DemoteTo(d16, hn::BitCast(di32, result));
  }
#endif
};

// ---- Operations ----

struct Sum {
  static constexpr bool kDivides = true;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Add(a, b);
  }
};

struct Prod {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    const hn::DFromV<V> d;
    using T = hn::TFromV<V>;
    if constexpr (sizeof(T) == 1 && hn::MaxLanes(d) == 1) {
      return hn::Set(d, static_cast<T>(hn::GetLane(a) * hn::GetLane(b)));
    } else if constexpr (sizeof(T) ==
                         1) {  // no instruction set multiplies bytes: the even and the odd ones as 16 bits
      const hn::Repartition<uint16_t, decltype(d)> d16;
      const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
      const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, uint16_t{0xff}));
      const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(d, hn::Or(even, odd));
    } else {
      return hn::Mul(a, b);
    }
  }
};

// a unless b is larger, or b is NaN and a is not: a NaN propagates from either side, and of two zeros the
// later wins, on every target alike.
struct Max {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

struct Min {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

// ---- The walk ----

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
  double factor = 1;       // of kMultiply and kDivide
  uint64_t streaming = 0;  // destinations that are written with non-temporal stores and are aligned for it
};

HWY_INLINE bool has_bit(uint64_t mask, size_t i) { return i < kMaskBits && ((mask >> i) & 1) != 0; }

template <class Type>
HWY_INLINE size_t element_bytes(uint64_t wide, size_t i) {
  return Type::kNarrow && has_bit(wide, i) ? sizeof(float) : Type::kBytes;
}

template <class Type, class D, size_t kVectors>
HWY_INLINE void load_source(D d, const Walk& walk, size_t source, size_t element,
                            hn::Vec<D> (&out)[kVectors]) {
  const size_t lanes = hn::Lanes(d);
  const auto* base = static_cast<const uint8_t*>(walk.call.sources[source]);
  if constexpr (Type::kNarrow) {
    if (!has_bit(walk.call.wide_sources, source)) {
      for (size_t j = 0; j < kVectors; ++j)
        out[j] = Type::load(d, base + (element + j * lanes) * Type::kBytes);
      return;
    }
  }
  for (size_t j = 0; j < kVectors; ++j) out[j] = load_any(d, base + (element + j * lanes) * sizeof(Lane<D>));
}

template <class D, size_t kVectors>
HWY_INLINE void store_vectors(D d, const hn::Vec<D> (&v)[kVectors], uint8_t* address, bool streaming) {
  const size_t bytes = hn::Lanes(d) * sizeof(Lane<D>);
  if (kVectors == kUnroll && streaming) {
    for (size_t j = 0; j < kVectors; ++j) stream_aligned(v[j], d, address + j * bytes);
    return;
  }
  for (size_t j = 0; j < kVectors; ++j) store_any(v[j], d, address + j * bytes);
}

template <class Type, class D, size_t kVectors>
HWY_INLINE void store_destinations(D d, const Walk& walk, size_t element, const hn::Vec<D> (&acc)[kVectors]) {
  const ReduceCall& call = walk.call;
  if constexpr (Type::kNarrow) {
    const hn::Rebind<uint16_t, D> d16;
    hn::Vec<decltype(d16)> narrow[kVectors];
    for (size_t j = 0; j < kVectors; ++j) narrow[j] = Type::narrow(d, acc[j]);
    for (size_t k = 0; k < call.destination_count; ++k) {
      auto* base = static_cast<uint8_t*>(call.destinations[k]);
      const bool streaming = has_bit(walk.streaming, k);
      if (has_bit(call.wide_destinations, k)) {
        store_vectors(d, acc, base + element * sizeof(float), streaming);
      } else {
        store_vectors(d16, narrow, base + element * Type::kBytes, streaming);
      }
    }
  } else {
    for (size_t k = 0; k < call.destination_count; ++k) {
      auto* base = static_cast<uint8_t*>(call.destinations[k]);
      store_vectors(d, acc, base + element * Type::kBytes, has_bit(walk.streaming, k));
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
template <class Type, class Op, size_t kVectors, class D>
HWY_INLINE void reduce_chunk(D d, const Walk& walk, size_t element) {
  using V = hn::Vec<D>;
  V acc[kVectors];
  load_source<Type>(d, walk, 0, element, acc);
  for (size_t s = 1; s < walk.call.source_count; ++s) {
    V next[kVectors];
    load_source<Type>(d, walk, s, element, next);
    for (size_t j = 0; j < kVectors; ++j) acc[j] = Op::combine(acc[j], next[j]);
  }
  if constexpr (Op::kDivides) {
    if (walk.finish != Finish::kNone) finish_chunk(d, walk, acc);
  }
  store_destinations<Type>(d, walk, element, acc);
}

// Elements [element, end), fewer than a chunk or at an address that the large stores cannot use.
template <class Type, class Op>
HWY_NOINLINE void reduce_rest(const Walk& walk, size_t element, size_t end) {
  using T = typename Type::Compute;
  const hn::ScalableTag<T> full;
  const hn::CappedTag<T, 16 / sizeof(T)> quarter;
  const hn::CappedTag<T, 1> single;
  for (; end - element >= hn::Lanes(full); element += hn::Lanes(full))
    reduce_chunk<Type, Op, 1>(full, walk, element);
  if constexpr (hn::MaxLanes(full) > hn::MaxLanes(quarter)) {
    for (; end - element >= hn::Lanes(quarter); element += hn::Lanes(quarter))
      reduce_chunk<Type, Op, 1>(quarter, walk, element);
  }
  for (; element < end; ++element) reduce_chunk<Type, Op, 1>(single, walk, element);
}

// Elements before the first streaming destination reaches a cache line; walk.streaming receives the
// destinations that are aligned from there on.
template <class Type>
HWY_INLINE size_t align_streaming(Walk& walk) {
  const ReduceCall& call = walk.call;
  size_t head = SIZE_MAX;
  for (size_t k = 0; k < call.destination_count; ++k) {
    if (!has_bit(call.streaming, k)) continue;
    const size_t bytes = element_bytes<Type>(call.wide_destinations, k);
    const size_t gap = (0 - reinterpret_cast<uintptr_t>(call.destinations[k])) % kLineBytes;
    if (head == SIZE_MAX && gap % bytes == 0) head = gap / bytes;
    if (head == SIZE_MAX) continue;
    const uintptr_t start = reinterpret_cast<uintptr_t>(call.destinations[k]) + head * bytes;
    if (start % kLineBytes == 0) walk.streaming |= uint64_t{1} << k;
  }
  return head == SIZE_MAX ? 0 : head;
}

template <class Type, class Op>
HWY_INLINE void reduce_all(Walk walk) {
  const hn::ScalableTag<typename Type::Compute> d;
  const size_t chunk = kUnroll * hn::Lanes(d);
  const size_t count = walk.call.count;
  size_t element = 0;
  if (walk.call.streaming != 0 && count >= 2 * chunk) {
    element = align_streaming<Type>(walk);
    if (element != 0) reduce_rest<Type, Op>(walk, 0, element);
  }
  for (; count - element >= chunk; element += chunk) reduce_chunk<Type, Op, kUnroll>(d, walk, element);
  if (element != count) reduce_rest<Type, Op>(walk, element, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace treering
HWY_AFTER_NAMESPACE();

#endif  // toggle
