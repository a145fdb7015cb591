// SPDX-License-Identifier: Apache-2.0
// Data types (rows of data_types.h) and reduction operations: one table row each, used by the kernels, the API's checks
// and the tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/data_types.h"
#include "treering/treering.h"

namespace treering {

enum class TypeKind : uint8_t {
  kInteger = trKindInteger,
  kFloat = trKindFloat,
  kComplex = trKindComplex,
  kBool = trKindBool
};

struct DataTypeInfo {
  trDataType_t type;
  const char* name;
  size_t size;  // bytes
  TypeKind kind;
  bool narrow_float;  // of 8 or 16 bits: accumulated in float32
  bool is_signed;
  int bits;           // significant ones (core/data_types.h)
  trDataType_t part;  // of complex types that of the real and the imaginary part; else the type itself
};

// Kinds of types that an operation takes, as bits.
enum KindBit : uint8_t { kIntegers = 1, kFloats = 2, kComplexes = 4, kBools = 8 };

struct OpInfo {
  trRedOp_t op;
  const char* name;
  uint8_t kinds;  // KindBit
};

#define TR_ROW(kind, type, name, storage, bits, is_signed, part)                                              \
  {type, name, sizeof(storage), kind, kind == TypeKind::kFloat && sizeof(storage) < sizeof(float), is_signed, \
   bits, part},
#define TR_INTEGER(type, kernels, name, storage, bits, ...) \
  TR_ROW(TypeKind::kInteger, type, name, storage, bits, std::is_signed_v<storage>, type)
#define TR_FLOAT(type, kernels, name, storage, bits, ...) \
  TR_ROW(TypeKind::kFloat, type, name, storage, bits, true, type)
#define TR_COMPLEX(type, kernels, name, storage, bits, representation, part) \
  TR_ROW(TypeKind::kComplex, type, name, storage, bits, true, part)
#define TR_TRUTH(type, kernels, name, storage, bits, ...) \
  TR_ROW(TypeKind::kBool, type, name, storage, bits, false, type)
inline constexpr DataTypeInfo kDataTypes[] = {TR_DATA_TYPES(TR_INTEGER, TR_FLOAT, TR_COMPLEX, TR_TRUTH)};
#undef TR_ROW
#undef TR_INTEGER
#undef TR_FLOAT
#undef TR_COMPLEX
#undef TR_TRUTH

inline constexpr OpInfo kOps[] = {
    {trSum, "sum", kIntegers | kFloats | kComplexes},
    {trProd, "prod", kIntegers | kFloats | kComplexes},
    {trMax, "max", kIntegers | kFloats},
    {trMin, "min", kIntegers | kFloats},
    {trAvg, "avg", kIntegers | kFloats | kComplexes},
    {trBitAnd, "bitand", kIntegers | kBools},
    {trBitOr, "bitor", kIntegers | kBools},
    {trBitXor, "bitxor", kIntegers | kBools},
    {trLogicalAnd, "land", kIntegers | kBools},
    {trLogicalOr, "lor", kIntegers | kBools},
    {trLogicalXor, "lxor", kIntegers | kBools},
};

static_assert(
    [] {
      for (size_t i = 0; i < std::size(kDataTypes); ++i)
        if (kDataTypes[i].type != static_cast<trDataType_t>(i)) return false;
      return true;
    }(),
    "the rows of data_types.h stand in the order of trDataType_t");

// What trGetDataTypeInfo() tells.
constexpr trDataTypeInfo_t public_info(const DataTypeInfo& row) {
  return {.size = sizeof(trDataTypeInfo_t),
          .name = row.name,
          .bytes = row.size,
          .kind = static_cast<trDataTypeKind_t>(row.kind),
          .is_signed = row.is_signed,
          .significant_bits = row.bits,
          .part = row.part};
}

// The row of a type or op, or nullptr for a value that is none.
constexpr const DataTypeInfo* find_type(trDataType_t type) {
  for (const DataTypeInfo& row : kDataTypes)
    if (row.type == type) return &row;
  return nullptr;
}
// "datatype is 99; known are 0 (int8) to ...".
inline std::string unknown_type(trDataType_t type) {
  const DataTypeInfo &first = *std::begin(kDataTypes), &last = *(std::end(kDataTypes) - 1);
  const auto known = [](const DataTypeInfo& row) { return std::to_string(row.type) + " (" + row.name + ")"; };
  return "datatype is " + std::to_string(static_cast<int>(type)) + "; known are " + known(first) + " to " + known(last);
}
constexpr const OpInfo* find_op(trRedOp_t op) {
  for (const OpInfo& row : kOps)
    if (row.op == op) return &row;
  return nullptr;
}

// The types in which float32 may travel (compression.md), as options name them.
struct WireType {
  std::string_view name;
  trDataType_t type;
};
inline constexpr WireType kWireTypes[] = {
    {"fp16", trFloat16}, {"bf16", trBfloat16}, {"fp8-e4m3", trFloat8e4m3}, {"fp8-e5m2", trFloat8e5m2}};
constexpr const WireType* find_wire_type(std::string_view name) {
  for (const WireType& wire : kWireTypes)
    if (wire.name == name) return &wire;
  return nullptr;
}

constexpr const WireType* find_wire_type(trDataType_t type) {
  for (const WireType& wire : kWireTypes)
    if (wire.type == type) return &wire;
  return nullptr;
}

// Whether an operation is defined for a type; both are known.
constexpr bool supports(const DataTypeInfo& type, const OpInfo& op) {
  return (op.kinds >> static_cast<unsigned>(type.kind) & 1) != 0;
}

// Whether results are truth values, 0 or 1: of bool the bits do not count.
constexpr bool gives_truth(trDataType_t type, trRedOp_t op) {
  return (op >= trLogicalAnd && op <= trLogicalXor) || (type == trBool && op >= trBitAnd && op <= trBitXor);
}

}  // namespace treering
