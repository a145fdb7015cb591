// SPDX-License-Identifier: Apache-2.0
// Every (collective that reduces, type, op) against a plain reference, in place and not, 1 to 9 ranks; every type
// through the collectives that only move data; operations made by the user; what is refused.
#include <algorithm>
#include <atomic>
#include <complex>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"

namespace treering::testing {
namespace {

using Bytes = std::vector<unsigned char>;

// A type as the tests see it: writes small numbers, combines them exactly, and compares.
struct Type {
  trDataType_t id;
  const char* name;
  size_t size;
  void (*put)(void* to, int value);
  int (*get)(const void* from);
};

template <typename T>
constexpr Type plain(trDataType_t id, const char* name) {
  return {id, name, sizeof(T),
          [](void* to, int value) {
            const T stored = static_cast<T>(value);
            std::memcpy(to, &stored, sizeof stored);
          },
          [](const void* from) {
            T stored;
            std::memcpy(static_cast<void*>(&stored), from, sizeof stored);
            if constexpr (requires { stored.real(); })
              return stored.imag() == 0 ? static_cast<int>(stored.real()) : -1;
            else
              return static_cast<int>(stored);
          }};
}

// Floats with few bits hold the values 0 to 16 exactly.
template <int kFractionBits, int kBias, typename Storage>
constexpr Type narrow(trDataType_t id, const char* name) {
  return {id, name, sizeof(Storage),
          [](void* to, int value) {
            Storage stored = 0;
            if (value != 0) {
              int exponent = 31 - __builtin_clz(static_cast<unsigned>(value));
              stored = static_cast<Storage>(((exponent + kBias) << kFractionBits) +
                                            (((value << kFractionBits) >> exponent) - (1 << kFractionBits)));
            }
            std::memcpy(to, &stored, sizeof stored);
          },
          [](const void* from) {
            Storage stored;
            std::memcpy(&stored, from, sizeof stored);
            if (stored == 0) return 0;
            const int exponent = (stored >> kFractionBits) - kBias;
            const int significand = (1 << kFractionBits) + (stored & ((1 << kFractionBits) - 1));
            return exponent >= kFractionBits ? significand << (exponent - kFractionBits)
                                             : significand >> (kFractionBits - exponent);
          }};
}

const Type kTypes[] = {
    plain<int8_t>(trInt8, "int8"),
    plain<uint8_t>(trUint8, "uint8"),
    plain<int32_t>(trInt32, "int32"),
    plain<uint32_t>(trUint32, "uint32"),
    plain<int64_t>(trInt64, "int64"),
    plain<uint64_t>(trUint64, "uint64"),
    narrow<10, 15, uint16_t>(trFloat16, "float16"),
    plain<float>(trFloat32, "float32"),
    plain<double>(trFloat64, "float64"),
    narrow<7, 127, uint16_t>(trBfloat16, "bfloat16"),
    narrow<3, 7, uint8_t>(trFloat8e4m3, "e4m3"),
    narrow<2, 15, uint8_t>(trFloat8e5m2, "e5m2"),
    plain<std::complex<float>>(trComplex64, "complex64"),
    plain<std::complex<double>>(trComplex128, "complex128"),
    plain<uint8_t>(trBool, "bool"),
};

bool is_integer(trDataType_t type) { return type <= trUint64; }
bool is_complex(trDataType_t type) { return type == trComplex64 || type == trComplex128; }
bool supported(trDataType_t type, trRedOp_t op) {
  if (op >= trBitAnd) return is_integer(type) || type == trBool;
  if (type == trBool) return false;
  return !is_complex(type) || (op != trMax && op != trMin);
}

// The value of one rank's element: 0, 1 or 2, so that sums and products of 9 are exact in every type: at most 4 ranks
// give something to a sum, two give a factor 2 to a product.
int input(int rank, size_t i, trRedOp_t op, trDataType_t type) {
  const auto k = static_cast<int>((i * 5 + static_cast<size_t>(rank) * 3) % 7);
  if (op == trProd) return (rank + static_cast<int>(i)) % 5 == 0 ? 2 : 1;
  if (op == trSum || op == trAvg) return rank % 3 == static_cast<int>(i % 3) ? 1 : 0;
  if (type == trBool && k % 2 == 0) return 0;
  if (type == trBool) return rank % 2 == 0 ? 4 : 7;  // every value but 0 is true
  return k % 3;
}

int expected(int n, size_t i, trRedOp_t op, trDataType_t type) {
  const auto operand = [&](int rank) {
    const int value = input(rank, i, op, type);
    return type == trBool || op >= trLogicalAnd ? value != 0 : value;
  };
  int result = operand(0);
  for (int rank = 1; rank < n; ++rank) {
    const int next = operand(rank);
    switch (op) {
      case trProd:
        result *= next;
        break;
      case trMax:
        result = std::max(result, next);
        break;
      case trMin:
        result = std::min(result, next);
        break;
      case trBitAnd:
        result &= next;
        break;
      case trBitOr:
        result |= next;
        break;
      case trBitXor:
        result ^= next;
        break;
      case trLogicalAnd:
        result = result != 0 && next != 0;
        break;
      case trLogicalOr:
        result = result != 0 || next != 0;
        break;
      case trLogicalXor:
        result = (result != 0) != (next != 0);
        break;
      default:
        result += next;
    }
  }
  return result;
}

enum class Kind { kAllReduce, kReduce, kReduceScatter };

constexpr size_t kPeriod = 3 * 5 * 7;  // after so many elements input() and expected() begin again

// `count` elements, and a byte behind them; values[i] is what one of the first period holds.
Bytes repeated(const Type& type, size_t count, const int (&values)[kPeriod]) {
  const size_t bytes = count * type.size;
  Bytes made(bytes + 1);
  for (size_t i = 0; i < std::min(count, kPeriod); ++i) type.put(made.data() + i * type.size, values[i]);
  for (size_t done = kPeriod * type.size; done < bytes; done *= 2)
    std::memcpy(made.data() + done, made.data(), std::min(done, bytes - done));
  return made;
}

void check_reduction(RankGroup& ranks, Kind kind, const Type& type, trRedOp_t op, size_t count, bool in_place) {
  const int n = ranks.count(), root = n - 1;
  const size_t input_count = kind == Kind::kReduceScatter ? count * static_cast<size_t>(n) : count;
  std::vector<Bytes> inputs, outputs;
  int values[kPeriod];
  for (int rank = 0; rank < n; ++rank) {
    for (size_t i = 0; i < kPeriod; ++i) values[i] = input(rank, i, op, type.id);
    inputs.push_back(repeated(type, input_count, values));
    outputs.emplace_back(count * type.size + 1, 0xEE);
  }
  auto result_of = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    if (!in_place) return outputs[r].data();
    return inputs[r].data() + (kind == Kind::kReduceScatter ? r * count * type.size : 0);
  };
  ranks.run([&](int rank, trComm_t comm) {
    const void* in = inputs[static_cast<size_t>(rank)].data();
    if (kind == Kind::kAllReduce) return trAllReduce(in, result_of(rank), count, type.id, op, comm, nullptr);
    if (kind == Kind::kReduce) return trReduce(in, result_of(rank), count, type.id, op, root, comm, nullptr);
    return trReduceScatter(in, result_of(rank), count, type.id, op, comm, nullptr);
  });
  for (size_t i = 0; i < kPeriod; ++i) values[i] = expected(n, i, op, type.id);
  const Bytes wanted = repeated(type, input_count, values);
  for (int rank = 0; rank < n; ++rank) {
    if (kind == Kind::kReduce && rank != root) continue;
    const size_t first = kind == Kind::kReduceScatter ? static_cast<size_t>(rank) * count : 0;
    if (op != trAvg && std::memcmp(result_of(rank), wanted.data() + first * type.size, count * type.size) == 0)
      continue;
    for (size_t i = 0; i < count; ++i) {
      int want = values[(first + i) % kPeriod];
      int got = type.get(result_of(rank) + i * type.size);
      if (op == trAvg) {  // compared as the sum: exact for a power of two, else only where it divides
        if (is_integer(type.id) ? got == want / n : want % n != 0) continue;
        want /= n;
      }
      ASSERT_EQ(got, want) << type.name << " op " << op << " kind " << static_cast<int>(kind) << " rank " << rank
                           << " of " << n << " element " << i << " of " << count << (in_place ? " in place" : "");
    }
  }
}

TEST(Types, EveryReductionWithEveryTypeAndOp) {
  for (int n = 1; n <= 9; ++n) {
    RankGroup ranks(n);
    for (const Type& type : kTypes)
      for (int op = trSum; op <= trLogicalXor; ++op)
        for (Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter})
          for (size_t count : {size_t{0}, size_t{1}, size_t{31}, size_t{4099}})
            for (bool in_place : {false, true}) {
              if (!supported(type.id, static_cast<trRedOp_t>(op))) continue;
              check_reduction(ranks, kind, type, static_cast<trRedOp_t>(op), count, in_place);
              if (HasFatalFailure()) return;
            }
  }
}

// The collectives that only move data move the bytes of every type.
TEST(Types, EveryTypeMoves) {
  constexpr int kRanks = 3;
  RankGroup ranks(kRanks);
  for (const Type& type : kTypes)
    for (size_t count : {size_t{1}, size_t{1009}}) {
      std::vector<Bytes> in, all, one;
      for (size_t r = 0; r < kRanks; ++r) {
        in.emplace_back(kRanks * count * type.size);
        for (size_t i = 0; i < in.back().size(); ++i) in.back()[i] = static_cast<unsigned char>(i * 7 + r * 31);
        all.emplace_back(in.back().size());
        one.emplace_back(count * type.size);
      }
      const size_t block = count * type.size;
      auto run = [&](auto call) {
        ranks.run([&](int r, trComm_t comm) { return call(static_cast<size_t>(r), comm); });
      };
      run([&](size_t r, trComm_t comm) {
        return trAllGather(in[r].data(), all[r].data(), count, type.id, comm, nullptr);
      });
      for (size_t r = 0; r < kRanks; ++r)
        for (size_t s = 0; s < kRanks; ++s)
          ASSERT_EQ(std::memcmp(all[r].data() + s * block, in[s].data(), block), 0) << type.name;
      run([&](size_t r, trComm_t comm) {
        return trAllToAll(in[r].data(), all[r].data(), count, type.id, comm, nullptr);
      });
      for (size_t r = 0; r < kRanks; ++r)
        for (size_t s = 0; s < kRanks; ++s)
          ASSERT_EQ(std::memcmp(all[r].data() + s * block, in[s].data() + r * block, block), 0) << type.name;
      run([&](size_t r, trComm_t comm) {
        return trScatter(in[r].data(), one[r].data(), count, type.id, 1, comm, nullptr);
      });
      for (size_t r = 0; r < kRanks; ++r)
        ASSERT_EQ(std::memcmp(one[r].data(), in[1].data() + r * block, block), 0) << type.name;
      run([&](size_t r, trComm_t comm) {
        return trBroadcast(in[r].data(), one[r].data(), count, type.id, 2, comm, nullptr);
      });
      for (size_t r = 0; r < kRanks; ++r) ASSERT_EQ(std::memcmp(one[r].data(), in[2].data(), block), 0) << type.name;
      run([&](size_t r, trComm_t comm) {
        return trGather(in[r].data(), all[r].data(), count, type.id, 0, comm, nullptr);
      });
      for (size_t s = 0; s < kRanks; ++s)
        ASSERT_EQ(std::memcmp(all[0].data() + s * block, in[s].data(), block), 0) << type.name;
    }
}

TEST(Types, WhatIsNotDefinedIsRefused) {
  RankGroup ranks(1);
  unsigned char buffer[64] = {};
  for (const Type& type : kTypes)
    for (int op = trSum; op <= trLogicalXor; ++op) {
      if (supported(type.id, static_cast<trRedOp_t>(op))) continue;
      EXPECT_EQ(trAllReduce(buffer, buffer, 1, type.id, static_cast<trRedOp_t>(op), ranks.comm(0), nullptr),
                trInvalidArgument);
      EXPECT_NE(std::strstr(trGetLastError(nullptr), "is not defined for datatype"), nullptr)
          << trGetLastError(nullptr);
    }
  EXPECT_EQ(trAllReduce(buffer, buffer, 1, trFloat32, static_cast<trRedOp_t>(64), ranks.comm(0), nullptr),
            trInvalidArgument);
  EXPECT_EQ(trBroadcast(buffer, buffer, 1, trFloat32, 1, ranks.comm(0), nullptr), trInvalidArgument);
  EXPECT_NE(std::strstr(trGetLastError(nullptr), "root is 1"), nullptr) << trGetLastError(nullptr);
}

// Also: the tests here have every type of the library.
TEST(Types, TheLibraryTellsOfEachType) {
  std::set<std::string> names;
  int next = 0;
  for (const Type& type : kTypes) {
    ASSERT_EQ(type.id, next++) << type.name;
    trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
    ASSERT_EQ(trGetDataTypeInfo(type.id, &info), trSuccess) << trGetLastError(nullptr);
    EXPECT_EQ(info.size, sizeof info);
    EXPECT_EQ(info.bytes, type.size) << type.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    const bool takes_sum = supported(type.id, trSum), takes_max = supported(type.id, trMax),
               takes_bits = supported(type.id, trBitAnd);
    const auto kind = takes_max ? trKindFloat : trKindComplex;
    const auto number = takes_bits ? trKindInteger : kind;
    EXPECT_EQ(info.kind, takes_sum ? number : trKindBool) << type.name;
    if (info.kind == trKindInteger) {
      EXPECT_EQ(info.significant_bits + info.is_signed, static_cast<int>(8 * type.size)) << type.name;
    }
    if (info.kind == trKindComplex) {
      trDataTypeInfo_t part = TR_DATA_TYPE_INFO_INITIALIZER;
      ASSERT_EQ(trGetDataTypeInfo(info.part, &part), trSuccess);
      EXPECT_EQ(part.kind, trKindFloat);
      EXPECT_EQ(2 * part.bytes, info.bytes) << type.name;
      EXPECT_EQ(part.significant_bits, info.significant_bits) << type.name;
    } else {
      EXPECT_EQ(info.part, type.id) << type.name;
    }
  }
  trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
  ASSERT_EQ(trGetDataTypeInfo(static_cast<trDataType_t>(next), &info), trInvalidArgument)
      << info.name << " is not tested";
}

TEST(Types, WhatIsToldOfSome) {
  trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
  for (const auto& [type, name, is_signed, bits] : {std::tuple{trInt8, "int8", 1, 7},
                                                    {trUint64, "uint64", 0, 64},
                                                    {trFloat16, "half", 1, 11},
                                                    {trFloat32, "float", 1, 24},
                                                    {trBfloat16, "bfloat16", 1, 8},
                                                    {trFloat8e5m2, "f8e5m2", 1, 3},
                                                    {trComplex128, "complex128", 1, 53},
                                                    {trBool, "bool", 0, 1}}) {
    ASSERT_EQ(trGetDataTypeInfo(type, &info), trSuccess);
    EXPECT_STREQ(info.name, name);
    EXPECT_EQ(info.is_signed, is_signed) << name;
    EXPECT_EQ(info.significant_bits, bits) << name;
  }
}

TEST(Types, QuestionsThatAreRefused) {
  const auto refused = [](trDataType_t type, trDataTypeInfo_t* info, const char* words) {
    EXPECT_EQ(trGetDataTypeInfo(type, info), trInvalidArgument);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), words), nullptr) << trGetLastError(nullptr);
  };
  trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
  refused(trInt8, nullptr, "info is NULL");
  refused(trDataTypeForceInt, &info, "datatype is 2147483647; known are 0 (int8) to");
  refused(static_cast<trDataType_t>(1000), &info, "datatype is 1000; known are 0 (int8) to");
  EXPECT_EQ(info.name, nullptr);
  info.size = 8;
  refused(trInt8, &info, "info->size is 8");

  // A caller with a newer header has more members. The library leaves those that it does not know as they are.
  struct {
    trDataTypeInfo_t known;
    int later;
  } newer = {TR_DATA_TYPE_INFO_INITIALIZER, 42};
  newer.known.size = sizeof newer;
  ASSERT_EQ(trGetDataTypeInfo(trInt32, &newer.known), trSuccess);
  EXPECT_EQ(newer.known.bytes, 4u);
  EXPECT_EQ(newer.known.size, sizeof newer);
  EXPECT_EQ(newer.later, 42);
}

TEST(UserOperations, PreMultipliedSum) {
  for (int n : {1, 2, 5}) {
    RankGroup ranks(n);
    std::vector<trRedOp_t> ops(static_cast<size_t>(n));
    for (int rank = 0; rank < n; ++rank) {  // each rank its own scalar
      const float scalar = static_cast<float>(rank + 1) / 2;
      ASSERT_EQ(trRedOpCreatePreMulSum(&ops[static_cast<size_t>(rank)], &scalar, trFloat32, ranks.comm(rank)),
                trSuccess);
    }
    for (size_t count : {size_t{1}, size_t{100}, size_t{50'021}}) {
      std::vector<std::vector<float>> buffers(static_cast<size_t>(n), std::vector<float>(count, 4.0f));
      ranks.run([&](int rank, trComm_t comm) {
        auto& buffer = buffers[static_cast<size_t>(rank)];
        return trAllReduce(buffer.data(), buffer.data(), count, trFloat32, ops[static_cast<size_t>(rank)], comm,
                           nullptr);
      });
      for (const auto& buffer : buffers)
        for (float value : buffer) ASSERT_EQ(value, static_cast<float>(n * (n + 1))) << n << " ranks, " << count;
    }
    double buffer = 0;
    EXPECT_EQ(trAllReduce(&buffer, &buffer, 1, trFloat64, ops[0], ranks.comm(0), nullptr), trInvalidArgument);
    EXPECT_EQ(trRedOpDestroy(ops[0], ranks.comm(0)), trSuccess);
    EXPECT_EQ(trRedOpDestroy(ops[0], ranks.comm(0)), trInvalidArgument);
  }
}

// Functions are given what users gave and nothing else, in groups as well: what pads fused calls is 0.
TEST(UserOperations, FunctionsSeeElementsOfUsersAlone) {
  RankGroup ranks(3);
  std::atomic<int> zeros{0};
  const auto sum = [](const void* in, void* inout, size_t count, trDataType_t, void* context) {
    const auto* left = static_cast<const int32_t*>(in);
    auto* right = static_cast<int32_t*>(inout);
    for (size_t i = 0; i < count; ++i) {
      if (left[i] == 0 || right[i] == 0) ++*static_cast<std::atomic<int>*>(context);
      right[i] += left[i];
    }
  };
  trRedOp_t ops[3];
  for (int rank = 0; rank < 3; ++rank)
    ASSERT_EQ(trRedOpCreateUser(&ops[rank], sum, &zeros, 1, ranks.comm(rank)), trSuccess);
  std::vector<std::vector<int32_t>> few(3, std::vector<int32_t>(3, 2)), more(3, std::vector<int32_t>(5, 4));
  ranks.run([&](int rank, trComm_t comm) {
    const auto r = static_cast<size_t>(rank);
    if (trResult_t result = trAllReduce(few[r].data(), few[r].data(), 3, trInt32, ops[rank], comm, nullptr))
      return result;
    return trAllReduce(more[r].data(), more[r].data(), 5, trInt32, ops[rank], comm, nullptr);
  });
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(few[r], std::vector<int32_t>(3, 6));
    EXPECT_EQ(more[r], std::vector<int32_t>(5, 12));
  }
  EXPECT_EQ(zeros, 0) << "elements that no user gave";
}

TEST(UserOperations, AreOfTheirCommunicatorAndTimeAlone) {
  RankGroup one(1), other(1);
  const float twice = 2, thrice = 3;
  trRedOp_t op = trSum, foreign = trSum, later = trSum;
  ASSERT_EQ(trRedOpCreatePreMulSum(&op, &twice, trFloat32, one.comm(0)), trSuccess);
  ASSERT_EQ(trRedOpCreatePreMulSum(&foreign, &thrice, trFloat32, other.comm(0)), trSuccess);
  float value = 1, result = 0;
  auto sum = [&](trRedOp_t with) { return trAllReduce(&value, &result, 1, trFloat32, with, one.comm(0), nullptr); };
  auto refused = [&](trRedOp_t with) {
    EXPECT_EQ(sum(with), trInvalidArgument);
    EXPECT_NE(std::strstr(trGetLastError(nullptr), "was not made on this communicator"), nullptr)
        << trGetLastError(nullptr);
  };
  refused(foreign);
  EXPECT_EQ(trRedOpDestroy(foreign, one.comm(0)), trInvalidArgument);
  ASSERT_EQ(trRedOpDestroy(op, one.comm(0)), trSuccess);
  ASSERT_EQ(trRedOpCreatePreMulSum(&later, &thrice, trFloat32, one.comm(0)), trSuccess);
  refused(op);
  EXPECT_EQ(sum(later), trSuccess);
  EXPECT_EQ(result, 3);
}

// The product of 2x2 matrices: associative, not commutative.
struct Matrix {
  int64_t a, b, c, d;
};
void multiply(const void* in, void* inout, size_t count, trDataType_t, void*) {
  const auto* left = static_cast<const int64_t*>(in);
  auto* right = static_cast<int64_t*>(inout);
  for (size_t i = 0; i + 3 < count; i += 4) {
    const Matrix x{left[i], left[i + 1], left[i + 2], left[i + 3]},
        y{right[i], right[i + 1], right[i + 2], right[i + 3]};
    right[i] = x.a * y.a + x.b * y.c;
    right[i + 1] = x.a * y.b + x.b * y.d;
    right[i + 2] = x.c * y.a + x.d * y.c;
    right[i + 3] = x.c * y.b + x.d * y.d;
  }
}

TEST(UserOperations, NonCommutativeFunctionKeepsTheOrderOfTheRanks) {
  for (int n : {1, 2, 3, 7})
    for (size_t matrices : {size_t{1}, size_t{5000}}) {
      RankGroup ranks(n);
      const auto size = static_cast<size_t>(n);
      std::vector<trRedOp_t> ops(size);
      Matrix expected{1, 0, 0, 1};
      std::vector<std::vector<int64_t>> inputs(size), outputs(size);
      for (int rank = 0; rank < n; ++rank) {
        const auto r = static_cast<size_t>(rank);
        ASSERT_EQ(trRedOpCreateUser(&ops[r], multiply, nullptr, 0, ranks.comm(rank)), trSuccess);
        const Matrix own{rank + 1, 1, rank % 2, 1};
        for (size_t m = 0; m < size * matrices; ++m) inputs[r].insert(inputs[r].end(), {own.a, own.b, own.c, own.d});
        outputs[r].resize(4 * matrices);
        expected = {expected.a * own.a + expected.b * own.c, expected.a * own.b + expected.b * own.d,
                    expected.c * own.a + expected.d * own.c, expected.c * own.b + expected.d * own.d};
      }
      for (Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
        const int root = n / 2;
        ranks.run([&](int rank, trComm_t comm) {
          const auto r = static_cast<size_t>(rank);
          const void* in = inputs[r].data();
          void* out = outputs[r].data();
          if (kind == Kind::kAllReduce) return trAllReduce(in, out, 4 * matrices, trInt64, ops[r], comm, nullptr);
          if (kind == Kind::kReduce) return trReduce(in, out, 4 * matrices, trInt64, ops[r], root, comm, nullptr);
          return trReduceScatter(in, out, 4 * matrices, trInt64, ops[r], comm, nullptr);
        });
        for (int rank = 0; rank < n; ++rank) {
          if (kind == Kind::kReduce && rank != root) continue;
          auto& output = outputs[static_cast<size_t>(rank)];
          for (size_t m = 0; m < matrices; ++m) {
            const int64_t* got = output.data() + 4 * m;
            ASSERT_TRUE(got[0] == expected.a && got[1] == expected.b && got[2] == expected.c && got[3] == expected.d)
                << "kind " << static_cast<int>(kind) << ", " << n << " ranks, matrix " << m << " of " << matrices;
          }
          std::fill(output.begin(), output.end(), -1);
        }
      }
    }
}

}  // namespace
}  // namespace treering::testing
