// SPDX-License-Identifier: Apache-2.0
// Small numbers in every type's bit pattern: exact in all of them, so that results are compared without tolerance.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "nccl.h"
#include "support/combined.h"

namespace treering::testing {

struct FloatFormat {
  int exponent_bits, mantissa_bits;
};
inline FloatFormat format_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
      return {5, 10};
    case ncclBfloat16:
      return {8, 7};
    case ncclFloat8e4m3:
      return {4, 3};
    default:
      return {5, 2};
  }
}

inline size_t size_of(ncclDataType_t type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kSizes[type];
}

// 0, or a number that is normal in the format and needs no rounding.
inline uint32_t encode(double value, FloatFormat format) {
  if (value == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent) * 2 - 1;  // 1.mantissa x 2^(exponent - 1)
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  return static_cast<uint32_t>(exponent - 1 + bias) << format.mantissa_bits |
         static_cast<uint32_t>(mantissa * (1 << format.mantissa_bits));
}

template <typename T>
void put(double value, void* at) {
  const T typed = static_cast<T>(value);
  std::memcpy(at, &typed, sizeof typed);
}

inline void store(ncclDataType_t type, double value, void* at) {
  switch (type) {
    case ncclInt8:
      return put<int8_t>(value, at);
    case ncclUint8:
      return put<uint8_t>(value, at);
    case ncclInt32:
      return put<int32_t>(value, at);
    case ncclUint32:
      return put<uint32_t>(value, at);
    case ncclInt64:
      return put<int64_t>(value, at);
    case ncclUint64:
      return put<uint64_t>(value, at);
    case ncclFloat32:
      return put<float>(value, at);
    case ncclFloat64:
      return put<double>(value, at);
    case ncclFloat16:
    case ncclBfloat16:
      return put<uint16_t>(encode(value, format_of(type)), at);
    default:
      return put<uint8_t>(encode(value, format_of(type)), at);
  }
}

inline std::vector<unsigned char> buffer_of(ncclDataType_t type, const std::vector<double>& values) {
  std::vector<unsigned char> bytes(values.size() * size_of(type));
  for (size_t i = 0; i < values.size(); ++i) store(type, values[i], bytes.data() + i * size_of(type));
  return bytes;
}

// What rank `rank` has at index i: 1 to `most`.
inline double value_of(int rank, int most, size_t i) {
  return 1 + static_cast<double>((i + static_cast<size_t>(rank)) % static_cast<size_t>(most));
}
// ... where values are combined: no partial result of 4 ranks exceeds 8, up to where float8 has every whole number.
inline int most_combined(int ranks) { return ranks == 4 ? 2 : ranks; }

// The result of `op` over all ranks at index i.
inline double reduced(ncclRedOp_t op, ncclDataType_t type, int ranks, size_t i) {
  const int most = most_combined(ranks);
  double result = value_of(0, most, i);
  for (int rank = 1; rank < ranks; ++rank)
    result = combined(op, ncclProd, ncclMax, ncclMin, result, value_of(rank, most, i));
  if (op != ncclAvg) return result;
  return type <= ncclUint64 ? std::trunc(result / ranks) : result / ranks;
}

}  // namespace treering::testing
