// SPDX-License-Identifier: Apache-2.0
// Numbers: how the device code holds and combines elements of each data type. The rules are those of the host's kernels
// (executor/reduce/reduce.h): narrow floats are accumulated in float32 and rounded once, to nearest even; NaN
// propagates in max and min; integers wrap; avg divides the sum, integers truncate toward zero.
//
// A Number has: Storage (as in memory), Compute (as in registers), load() and store() between them. On GPUs the
// conversions of narrow floats are the hardware's where it has them; elsewhere integer arithmetic with the same
// results.
#pragma once

#include <type_traits>

#include "device/platform.h"
#include "treering/treering.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace treering::cuda {

template <class To, class From>
TR_DEVICE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <class T>
struct Plain {
  using Storage = T;
  using Compute = T;
  static TR_DEVICE T load(T value) { return value; }
  static TR_DEVICE T store(T value) { return value; }
};

// A float of kBits bits with kMantissa bits of fraction, by integer arithmetic: what the host's kernels do, element by
// element. kMinSpecial: the magnitude of the infinity, or of the only NaN of formats without.
template <class Bits, uint32_t kMantissa, uint32_t kBias, uint32_t kMinSpecial>
struct Narrow {
  using Storage = Bits;
  using Compute = float;
  static constexpr uint32_t kShift = 23 - kMantissa;
  static constexpr uint32_t kSign = 1u << (8 * sizeof(Bits) - 1);

  static TR_DEVICE float load(Bits bits) {
    const uint32_t magnitude = bits & (kSign - 1);
    const uint32_t sign = (bits & kSign) != 0 ? 0x80000000u : 0u;
    if (magnitude >= kMinSpecial)
      return same_bits<float>(sign | 0x7f800000u | (magnitude & ((1u << kMantissa) - 1)) << kShift);
    return same_bits<float>(
        same_bits<uint32_t>(same_bits<float>(magnitude << kShift) * same_bits<float>((127 + 127 - kBias) << 23)) |
        sign);
  }
  static TR_DEVICE Bits store(float value) {
    const uint32_t bits = same_bits<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t result;
    if (magnitude > 0x7f800000u) {
      result = kSign - 1;
    } else if (magnitude < (128 - kBias) << 23) {  // rounds to a multiple of the least denormal
      constexpr uint32_t kMagic = (127 - kBias + kShift + 1) << 23;
      result = same_bits<uint32_t>(same_bits<float>(magnitude) + same_bits<float>(kMagic)) - kMagic;
    } else {
      const uint32_t odd = magnitude >> kShift & 1u;
      result = (magnitude + ((1u << (kShift - 1)) - 1) - ((127 - kBias) << 23) + odd) >> kShift;
      if (result > kMinSpecial) result = kMinSpecial;
    }
    return static_cast<Bits>(result | ((bits >> 31) != 0 ? kSign : 0u));
  }
};

#if defined(__CUDACC__)
struct Float16 {
  using Storage = uint16_t;
  using Compute = float;
  static TR_DEVICE float load(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static TR_DEVICE uint16_t store(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
struct Bfloat16 {
  using Storage = uint16_t;
  using Compute = float;
  static TR_DEVICE float load(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
  static TR_DEVICE uint16_t store(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
};
// Instructions from compute capability 8.9 on; before that the header's integer arithmetic.
template <__nv_fp8_interpretation_t kFormat>
struct Float8 {
  using Storage = uint8_t;
  using Compute = float;
  static TR_DEVICE float load(uint8_t bits) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kFormat))); }
  static TR_DEVICE uint8_t store(float value) {
    const uint8_t bits = __nv_cvt_float_to_fp8(value, __NV_NOSAT, kFormat);
    return isnan(value) ? static_cast<uint8_t>(0x7f | (same_bits<uint32_t>(value) >> 31) << 7) : bits;
  }
};
using Float8e4m3 = Float8<__NV_E4M3>;
using Float8e5m2 = Float8<__NV_E5M2>;
#else
using Float16 = Narrow<uint16_t, 10, 15, 0x7c00>;
struct Bfloat16 {
  using Storage = uint16_t;
  using Compute = float;
  static float load(uint16_t bits) { return same_bits<float>(static_cast<uint32_t>(bits) << 16); }
  static uint16_t store(float value) {
    const uint32_t bits = same_bits<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};
using Float8e4m3 = Narrow<uint8_t, 3, 7, 0x7f>;
using Float8e5m2 = Narrow<uint8_t, 2, 15, 0x7c>;
#endif

template <class T>
struct Complex {
  T re, im;
};
template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<Complex<T>> : std::true_type {};

// a unless b is larger (smaller), or b is NaN and a is not: a NaN propagates from either side.
template <class T>
TR_DEVICE T larger(T a, T b, bool smaller) {
  if constexpr (std::is_floating_point_v<T>) {
    return a != a || (smaller ? a < b : a > b) ? a : b;
  } else {
    return (smaller ? a < b : a > b) ? a : b;
  }
}

// a op b. Sums of integers wrap, so they are computed without a sign.
template <class T>
TR_DEVICE T combine_two(trRedOp_t op, T a, T b) {
  if constexpr (IsComplex<T>::value) {
    // Each product is rounded by itself, as on the host: no fused multiply-add.
    if (op != trProd) return {a.re + b.re, a.im + b.im};
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 8)
      return {__fsub_rn(__fmul_rn(a.re, b.re), __fmul_rn(a.im, b.im)),
              __fadd_rn(__fmul_rn(a.re, b.im), __fmul_rn(a.im, b.re))};
    else
      return {__dsub_rn(__dmul_rn(a.re, b.re), __dmul_rn(a.im, b.im)),
              __dadd_rn(__dmul_rn(a.re, b.im), __dmul_rn(a.im, b.re))};
#else
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
#endif
  } else if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case trProd:
        return a * b;
      case trMax:
        return larger(a, b, false);
      case trMin:
        return larger(a, b, true);
      default:
        return a + b;
    }
  } else {
    using U = std::make_unsigned_t<T>;
    const auto ua = static_cast<uint64_t>(static_cast<U>(a)), ub = static_cast<uint64_t>(static_cast<U>(b));
    switch (op) {
      case trProd:
        return static_cast<T>(ua * ub);
      case trMax:
        return larger(a, b, false);
      case trMin:
        return larger(a, b, true);
      case trBitAnd:
        return static_cast<T>(ua & ub);
      case trBitOr:
        return static_cast<T>(ua | ub);
      case trBitXor:
        return static_cast<T>(ua ^ ub);
      case trLogicalAnd:
        return static_cast<T>(ua != 0 && ub != 0);
      case trLogicalOr:
        return static_cast<T>(ua != 0 || ub != 0);
      case trLogicalXor:
        return static_cast<T>((ua != 0) != (ub != 0));
      default:
        return static_cast<T>(ua + ub);
    }
  }
}

// An operand of a pre-multiplied sum: rounded to its type, as it is when it is sent.
template <class Number>
TR_DEVICE typename Number::Compute scaled(typename Number::Compute value, typename Number::Compute scale) {
  return Number::load(Number::store(combine_two(trProd, value, scale)));
}

template <class T>
TR_DEVICE T divide_by(T sum, uint32_t divisor) {
  if constexpr (IsComplex<T>::value) {
    using Part = decltype(sum.re);
    return {sum.re / static_cast<Part>(divisor), sum.im / static_cast<Part>(divisor)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(divisor);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(divisor));
  } else {
    return static_cast<T>(static_cast<uint64_t>(sum) / divisor);
  }
}

}  // namespace treering::cuda
