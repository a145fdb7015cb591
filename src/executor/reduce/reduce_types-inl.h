// SPDX-License-Identifier: Apache-2.0
// What the reduction kernels are made of: loads and stores of any address, element types, and operations, in
// Highway's vectors. Compiled once for each target.
//
// A Type says how an element is loaded, held and stored; an Op how two are combined.

// Highway includes this file once for each target, hence the toggle in place of #pragma once.
#if defined(TREERING_EXECUTOR_REDUCE_TYPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREERING_EXECUTOR_REDUCE_TYPES_INL_H_
#undef TREERING_EXECUTOR_REDUCE_TYPES_INL_H_
#else
#define TREERING_EXECUTOR_REDUCE_TYPES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace treering {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Lane = hn::TFromD<D>;

// How much of a vector a load or store touches.
struct Whole {};
struct First {  // the first `lanes` lanes; no byte beyond them is touched
  size_t lanes;
};

// AVX-512 has masked loads and stores of every lane size that never fault beyond the mask.
inline constexpr bool kHasMasks = HWY_TARGET == HWY_AVX3;

// Loads and stores accept any address: a single element goes through memcpy, because Highway would
// dereference a typed pointer for it.
template <class D>
HWY_INLINE hn::Vec<D> load_any(D d, const uint8_t* address, Whole) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    HWY_ALIGN Lane<D> lanes[16 / sizeof(Lane<D>)] = {};
    std::memcpy(lanes, address, sizeof(Lane<D>));
    return hn::Load(d, lanes);
  } else {
    return hn::LoadU(d, reinterpret_cast<const Lane<D>*>(address));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load_any(D d, const uint8_t* address, First part) {
  return hn::MaskedLoad(hn::FirstN(d, part.lanes), d, reinterpret_cast<const Lane<D>*>(address));
}

template <class D>
HWY_INLINE void store_any(hn::Vec<D> v, D d, uint8_t* address, Whole) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    HWY_ALIGN Lane<D> lanes[16 / sizeof(Lane<D>)];
    hn::Store(v, d, lanes);
    std::memcpy(address, lanes, sizeof(Lane<D>));
  } else {
    hn::StoreU(v, d, reinterpret_cast<Lane<D>*>(address));
  }
}

template <class D>
HWY_INLINE void store_any(hn::Vec<D> v, D d, uint8_t* address, First part) {
  hn::BlendedStore(v, hn::FirstN(d, part.lanes), d, reinterpret_cast<Lane<D>*>(address));
}

template <class D>
HWY_INLINE void stream_aligned(hn::Vec<D> v, D d, uint8_t* address) {
  if constexpr (hn::MaxLanes(D()) * sizeof(Lane<D>) < 16) {
    store_any(v, d, address, Whole());  // Highway would store a whole 128-bit vector
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
  using Storage = uint16_t;
  static constexpr bool kNarrow = true, kFlagged = false;
  static constexpr size_t kBytes = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<uint16_t, D>> narrow) {
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, narrow)));
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
  using Storage = uint16_t;
  static constexpr bool kNarrow = true, kFlagged = false;
  static constexpr size_t kBytes = 2;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<uint16_t, D>> narrow) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, narrow));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> narrow([[maybe_unused]] D d, hn::Vec<D> v) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::BitCast(d16, hn::DemoteTo(df16, v));
  }
#else
  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<uint16_t, D>> narrow) {
    const hn::RebindToUnsigned<D> d32;
    const auto half = hn::PromoteTo(d32, narrow);
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d32, 0x7fffu)));
    const auto scaled = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f));  // exact, denormals included
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

// 8-bit floats of the OCP specification (OFP8, revision 1.0): a sign, kExponentBits, kMantissaBits. Without infinities
// (e4m3) the largest bit pattern alone is NaN, and what overflows becomes NaN. Rounds to nearest even, once, from
// float32; denormals are exact. The arithmetic is that of float16 above with other constants.
template <uint32_t kMantissaBits, uint32_t kBias, bool kInfinities>
struct Float8 {
  using Compute = float;
  using Storage = uint8_t;
  static constexpr bool kNarrow = true, kFlagged = false;
  static constexpr size_t kBytes = 1;
  static constexpr int kShift = 23 - static_cast<int>(kMantissaBits);
  static constexpr uint32_t kMinSpecial = kInfinities ? 0x7c : 0x7f;

  template <class D>
  static HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<uint8_t, D>> narrow) {
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::PromoteTo(d32, narrow);
    const auto sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(d32, 0x80u)));
    const auto small = hn::And(bits, hn::Set(d32, 0x7fu));
    const auto scaled =
        hn::Mul(hn::BitCast(d, hn::ShiftLeft<kShift>(small)), hn::BitCast(d, hn::Set(d32, (127 + 127 - kBias) << 23)));
    // An infinity keeps an empty mantissa, a NaN a set one.
    const auto special = hn::Or(hn::ShiftLeft<kShift>(hn::And(small, hn::Set(d32, (1u << kMantissaBits) - 1))),
                                hn::Set(d32, 0x7f800000u));
    const auto is_special = hn::Gt(small, hn::Set(d32, kMinSpecial - 1));
    return hn::BitCast(d, hn::Or(hn::IfThenElse(is_special, special, hn::BitCast(d32, scaled)), sign));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<uint8_t, D>> narrow([[maybe_unused]] D d, hn::Vec<D> v) {
    const hn::Rebind<uint8_t, D> d8;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> di32;
    const auto bits = hn::BitCast(d32, v);
    const auto sign = hn::And(bits, hn::Set(d32, 0x80000000u));
    const auto magnitude = hn::Xor(bits, sign);
    const auto magic = hn::Set(d32, (127 - kBias + static_cast<uint32_t>(kShift) + 1) << 23);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic));
    const auto denormal = hn::Sub(hn::BitCast(d32, sum), magic);
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(d32, 1u));
    const auto biased =
        hn::Sub(hn::Add(magnitude, hn::Set(d32, (1u << (kShift - 1)) - 1)), hn::Set(d32, (127 - kBias) << 23));
    const auto normal = hn::ShiftRight<kShift>(hn::Add(biased, odd));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d32, (128 - kBias) << 23)), denormal, normal);
    result = hn::IfThenElse(hn::Gt(result, hn::Set(d32, kMinSpecial)), hn::Set(d32, kMinSpecial), result);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7f800000u)), hn::Set(d32, 0x7fu), result);
    result = hn::Or(result, hn::ShiftRight<24>(sign));
    return hn::DemoteTo(d8, hn::BitCast(di32, result));
  }
};
using Float8e4m3 = Float8<3, 7, false>;
using Float8e5m2 = Float8<2, 15, true>;

// A narrow type in calls some of whose sources have flags (SourceFlag): kernels of their own, so that plain calls, the
// most of all, have no branch for each source.
template <class Narrow>
struct Flagged : Narrow {
  static constexpr bool kFlagged = true;
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
    } else if constexpr (sizeof(T) == 1) {  // no instruction set multiplies bytes: the even and the odd ones as 16 bits
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

struct BitAnd {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::And(a, b);
  }
};

struct BitOr {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Or(a, b);
  }
};

struct BitXor {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Xor(a, b);
  }
};

// The result for two truth values, 0 or 1. Every value but 0 is true.
template <class Bitwise>
struct Logical {
  static constexpr bool kDivides = false;
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    const hn::DFromV<V> d;
    const auto one = hn::Set(d, hn::TFromV<V>{1}), zero = hn::Zero(d);
    const auto truth = [&](V v) { return hn::IfThenElse(hn::Eq(v, zero), zero, one); };
    return Bitwise::combine(truth(a), truth(b));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace treering
HWY_AFTER_NAMESPACE();

#endif  // toggle
