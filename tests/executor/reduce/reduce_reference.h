// SPDX-License-Identifier: Apache-2.0
// A plain scalar reference of the reduction kernels: one element at a time, left to right, as the interface
// states it.
//
// It shares nothing with the kernels. 16-bit floats are encoded through exact double arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "treering/treering.h"

namespace treering::reference {

// value >= 0, finite: its bits in a format with `fraction_bits` and smallest quantum 2^min_exponent, to
// nearest even.
inline uint32_t encode_magnitude(double value, int fraction_bits, int min_exponent, uint32_t infinity) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int quantum = std::max(exponent - fraction_bits - 1, min_exponent);
  const double rounded = std::nearbyint(std::ldexp(value, -quantum));
  const auto bits = (static_cast<uint32_t>(quantum - min_exponent) << fraction_bits) + static_cast<uint32_t>(rounded);
  return std::min(bits, infinity);
}

// kInfinity: the bits of the infinity, or, of formats without, of the only NaN.
template <int kFractionBits, int kMinExponent, uint32_t kInfinity, class Storage = uint16_t, bool kInfinities = true>
struct NarrowFormat {
  using Compute = float;
  static constexpr bool kNarrow = true;
  static constexpr size_t kBytes = sizeof(Storage);
  static constexpr uint32_t kSign = 1u << (8 * sizeof(Storage) - 1);

  static float load(const uint8_t* from) {
    Storage bits;
    std::memcpy(&bits, from, sizeof bits);
    const uint32_t magnitude = bits & (kSign - 1);
    double value;
    if (magnitude > kInfinity || (magnitude == kInfinity && !kInfinities)) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (magnitude == kInfinity) {
      value = std::numeric_limits<double>::infinity();
    } else {
      const int exponent = static_cast<int>(magnitude >> kFractionBits);
      const uint32_t fraction = magnitude & ((1u << kFractionBits) - 1);
      const uint32_t significand = exponent == 0 ? fraction : fraction + (1u << kFractionBits);
      value = std::ldexp(significand, kMinExponent + std::max(exponent - 1, 0));
    }
    return static_cast<float>(std::copysign(value, (bits & kSign) != 0 ? -1.0 : 1.0));
  }

  static void store(float value, uint8_t* to) {
    uint32_t bits = kInfinity;
    if (std::isnan(value)) {
      bits = kInfinity | 1;
    } else if (std::isfinite(value)) {
      bits = encode_magnitude(std::fabs(value), kFractionBits, kMinExponent, kInfinity);
    }
    const auto stored = static_cast<Storage>(bits | (std::signbit(value) ? kSign : 0u));
    std::memcpy(to, &stored, sizeof stored);
  }

  static bool is_nan(const uint8_t* from) { return std::isnan(load(from)); }
};

template <class T>
struct PlainFormat {
  using Compute = T;
  static constexpr bool kNarrow = false;
  static constexpr size_t kBytes = sizeof(T);

  static T load(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static void store(T value, uint8_t* to) { std::memcpy(to, &value, sizeof(T)); }
  static bool is_nan(const uint8_t* from) {
    if constexpr (std::is_floating_point_v<T>) return std::isnan(load(from));
    return false;
  }
};

using Half = NarrowFormat<10, -24, 0x7c00>;
using Bfloat = NarrowFormat<7, -133, 0x7f80>;
using E4m3 = NarrowFormat<3, -9, 0x7f, uint8_t, false>;
using E5m2 = NarrowFormat<2, -16, 0x7c, uint8_t>;

template <class T>
T combine(trRedOp_t op, T a, T b) {
  constexpr bool kFloat = std::is_floating_point_v<T>;
  if (op == trMax || op == trMin) {
    if constexpr (kFloat) {
      if (std::isnan(a)) return a;
    }
    return (op == trMax ? a > b : a < b) ? a : b;
  }
  if constexpr (kFloat) {
    return op == trProd ? a * b : a + b;
  } else {
    switch (op) {
      case trBitAnd:
        return static_cast<T>(a & b);
      case trBitOr:
        return static_cast<T>(a | b);
      case trBitXor:
        return static_cast<T>(a ^ b);
      case trLogicalAnd:
        return a != 0 && b != 0;
      case trLogicalOr:
        return a != 0 || b != 0;
      case trLogicalXor:
        return (a != 0) != (b != 0);
      default:
        break;
    }
    const auto wide_a = static_cast<uint64_t>(a), wide_b = static_cast<uint64_t>(b);
    return static_cast<T>(op == trProd ? wide_a * wide_b : wide_a + wide_b);
  }
}

template <class T>
T divide(T sum, uint32_t divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(divisor);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(divisor));
  } else {
    return static_cast<T>(static_cast<uint64_t>(sum) / static_cast<uint64_t>(divisor));
  }
}

}  // namespace treering::reference
