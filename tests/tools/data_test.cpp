// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <gtest/gtest.h>

#include <array>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace treering::perf {
namespace {

constexpr size_t kElements = 200;
constexpr uint64_t kSeed = 20240229;

double combined(trRedOp_t op, double a, double b) {
  switch (op) {
    case trProd:
      return a * b;
    case trMax:
      return std::max(a, b);
    case trMin:
      return std::min(a, b);
    default:
      return a + b;
  }
}

bool representable(const DataType& type, double value) {
  return decode_float(type, encode_float(type, value)) == value;
}

// Every partial result in three orders of the ranks (up, down, pairwise tree) must be a value of the type
// itself: then no algorithm, whatever it forwards, can round.
void expect_exact(const DataType& type, trRedOp_t op, int ranks, size_t index) {
  std::vector<double> values;
  for (int rank = 0; rank < ranks; ++rank) {
    values.push_back(input_float(type, op, index, rank, ranks, kSeed));
    ASSERT_TRUE(representable(type, values.back())) << type.name << " " << values.back();
  }
  double up = values.front();
  double down = values.back();
  for (int i = 1; i < ranks; ++i) {
    up = combined(op, up, values[i]);
    down = combined(op, down, values[ranks - 1 - i]);
    ASSERT_TRUE(representable(type, up) && representable(type, down))
        << type.name << " op " << op << " ranks " << ranks << " index " << index << ": " << up << ", " << down;
  }
  for (size_t width = values.size(); width > 1; width = (width + 1) / 2) {
    for (size_t i = 0; i < width / 2; ++i) {
      values[i] = combined(op, values[2 * i], values[2 * i + 1]);
      ASSERT_TRUE(representable(type, values[i])) << type.name << " op " << op << " ranks " << ranks;
    }
    if (width % 2) values[width / 2] = values[width - 1];
  }
  ASSERT_EQ(up, down);
  ASSERT_EQ(up, values[0]);
}

TEST(Data, FloatsAreExactForEveryTypeOperationAndNumberOfRanks) {
  for (const DataType& type : data_types()) {
    if (!type.is_float || type.lanes == 2) continue;  // complex numbers are pairs of the other floats
    for (const Operation& operation : operations()) {
      if (!is_defined(type, operation)) continue;
      for (int ranks = 1; ranks <= 64; ++ranks) {
        for (size_t index = 0; index < kElements; ++index) expect_exact(type, operation.id, ranks, index);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Data, FloatsAreExactForManyRanks) {
  for (const DataType& type : data_types()) {
    if (!type.is_float || type.lanes == 2) continue;
    for (const int ranks : {300, 1024, 4096}) {
      for (size_t index = 0; index < 20; ++index) expect_exact(type, trSum, ranks, index);
      if (HasFatalFailure()) return;
    }
  }
}

// The average of integers is defined by their sum, which must not wrap.
TEST(Data, SumsOfIntegerAveragesDoNotWrap) {
  for (const DataType& type : data_types()) {
    if (type.is_float || type.id == trBool) continue;
    const double most = std::ldexp(1.0, static_cast<int>(8 * type.bytes) - (type.is_signed ? 1 : 0)) - 1;
    for (int ranks = 1; ranks <= 64; ++ranks) {
      for (size_t index = 0; index < kElements; ++index) {
        double least_sum = 0, most_sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const uint64_t bits = input_bits(type, trAvg, index, rank, ranks, kSeed);
          const int shift = 64 - 8 * static_cast<int>(type.bytes);
          const double value = type.is_signed ? static_cast<double>(static_cast<int64_t>(bits << shift) >> shift)
                                              : static_cast<double>(bits);
          (value < 0 ? least_sum : most_sum) += value;
        }
        ASSERT_LE(most_sum, most) << type.name << " " << ranks;
        ASSERT_GE(least_sum, -most) << type.name << " " << ranks;
      }
    }
  }
}

template <typename T>
T truth(trRedOp_t op, T a, T b) {
  const bool x = a != 0, y = b != 0;
  const std::array<T, 6> results = {static_cast<T>(a & b),  static_cast<T>(a | b),  static_cast<T>(a ^ b),
                                    static_cast<T>(x && y), static_cast<T>(x || y), static_cast<T>(x != y)};
  return results[static_cast<size_t>(op - trBitAnd)];
}

// A reduction written another way than the expectation in data.cpp: on native types, in the order of the
// ranks.
template <typename T>
std::vector<T> reduce(const DataType& type, trRedOp_t op, int ranks, size_t count) {
  std::vector<T> result(count), input(count);
  for (int rank = 0; rank < ranks; ++rank) {
    fill_input(input.data(), count, type, op, rank, ranks, kSeed);
    for (size_t i = 0; i < count; ++i) {
      if (rank == 0) {
        result[i] = input[i];
      } else if (op == trProd) {
        result[i] = static_cast<T>(result[i] * input[i]);
      } else if (op >= trBitAnd) {
        if constexpr (std::is_integral_v<T>) result[i] = truth(op, result[i], input[i]);
      } else if (op == trMax || op == trMin) {
        result[i] = op == trMax ? std::max(result[i], input[i]) : std::min(result[i], input[i]);
      } else {
        result[i] = static_cast<T>(result[i] + input[i]);
      }
    }
  }
  if (op == trAvg) {
    for (T& value : result) value = static_cast<T>(value / static_cast<T>(ranks));
  }
  return result;
}

template <typename T>
void expect_checked(const char* name) {
  const DataType& type = *find_data_type(name);
  for (const Operation& operation : operations()) {
    if (!is_defined(type, operation)) continue;
    for (const int ranks : {1, 2, 3, 7, 16, 64}) {
      const size_t count = 1000;
      std::vector<T> result = reduce<T>(type, operation.id, ranks, count);
      EXPECT_EQ(count_wrong(result.data(), count, type, operation.id, ranks, kSeed), 0u)
          << name << " " << operation.name << " " << ranks;
      // Any single element that is off is found, by the least bit but for averages of floats.
      const bool tolerant = operation.id == trAvg && type.is_float;
      uint8_t* byte = reinterpret_cast<uint8_t*>(&result[count / 2]);
      *byte ^= tolerant ? 0x10 : 0x01;
      EXPECT_EQ(count_wrong(result.data(), count, type, operation.id, ranks, kSeed), 1u)
          << name << " " << operation.name << " " << ranks;
    }
  }
}

// Products are wrapped in the unsigned type of the same width: the bits are the same and overflow is defined.
TEST(CountWrong, AcceptsRightAndFindsWrongResults) {
  expect_checked<uint8_t>("uint8");
  expect_checked<uint32_t>("uint32");
  expect_checked<uint64_t>("uint64");
  expect_checked<float>("float");
  expect_checked<double>("double");
  expect_checked<int8_t>("int8");
}

TEST(CountWrong, SignedTypesCompareAsSigned) {
  const DataType& type = *find_data_type("int32");
  for (const trRedOp_t op : {trMax, trMin, trAvg}) {
    const auto result = reduce<int32_t>(type, op, 5, 500);
    EXPECT_EQ(count_wrong(result.data(), 500, type, op, 5, kSeed), 0u) << op;
  }
}

TEST(CountWrong, SeesPoisonOtherSeedsAndShiftedChunks) {
  const DataType& type = *find_data_type("float");
  const size_t count = 3 * kPeriod + 17;
  std::vector<float> result = reduce<float>(type, trSum, 4, count);
  EXPECT_EQ(count_wrong(result.data(), count, type, trSum, 4, kSeed), 0u);
  EXPECT_GT(count_wrong(result.data(), count, type, trSum, 4, kSeed + 1), count / 2);
  std::swap_ranges(result.begin(), result.begin() + 16384, result.begin() + 65536);
  EXPECT_GT(count_wrong(result.data(), count, type, trSum, 4, kSeed), 20000u);
  std::memset(result.data(), kPoison, count * sizeof(float));
  EXPECT_EQ(count_wrong(result.data(), count, type, trSum, 4, kSeed), count);
}

TEST(CountWrong, AverageMayBeTwoUnitsOff) {
  const DataType& type = *find_data_type("float");
  std::vector<float> result = reduce<float>(type, trAvg, 3, 100);
  float& value = *std::find_if(result.begin(), result.end(), [](float v) { return v != 0; });
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t exact = bits;
  for (const auto& [off, wrong] : {std::pair<uint32_t, size_t>{2, 0}, {4, 1}}) {
    bits = exact + off;
    std::memcpy(&value, &bits, sizeof(bits));
    EXPECT_EQ(count_wrong(result.data(), 100, type, trAvg, 3, kSeed), wrong) << off;
  }
}

TEST(EncodeFloat, RoundsToNearestEven) {
  const DataType& half = *find_data_type("half");
  EXPECT_EQ(encode_float(half, 1.0), 0x3c00u);
  EXPECT_EQ(encode_float(half, -2.0), 0xc000u);
  EXPECT_EQ(encode_float(half, 65504.0), 0x7bffu);
  EXPECT_EQ(encode_float(half, 65520.0), 0x7c00u);
  EXPECT_EQ(encode_float(half, std::ldexp(1.0, -24)), 0x0001u);
  EXPECT_EQ(encode_float(half, std::ldexp(1.0, -14)), 0x0400u);
  EXPECT_EQ(encode_float(half, 2049.0), encode_float(half, 2048.0));  // a tie goes to the even neighbour
  EXPECT_EQ(encode_float(half, 2051.0), encode_float(half, 2052.0));
  const DataType& brain = *find_data_type("bfloat16");
  EXPECT_EQ(encode_float(brain, 1.0), 0x3f80u);
  EXPECT_EQ(encode_float(brain, 257.0), encode_float(brain, 256.0));
  EXPECT_EQ(encode_float(brain, 259.0), encode_float(brain, 260.0));
}

TEST(EncodeFloat, EveryHalfSurvivesTheRoundTrip) {
  const DataType& half = *find_data_type("half");
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double value = decode_float(half, bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(encode_float(half, value), bits);
  }
}

}  // namespace
}  // namespace treering::perf
