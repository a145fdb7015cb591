// SPDX-License-Identifier: Apache-2.0
// Data types and reduction operations: one table row each, used by the kernels, the API's checks and the tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "treering/treering.h"

namespace treering {

enum class TypeKind : uint8_t { kInteger, kFloat, kComplex, kBool };

struct DataTypeInfo {
  trDataType_t type;
  const char* name;
  size_t size;  // bytes
  TypeKind kind;
  bool narrow_float;  // of 8 or 16 bits: accumulated in float32
};

// Kinds of types that an operation takes, as bits.
enum KindBit : uint8_t { kIntegers = 1, kFloats = 2, kComplexes = 4, kBools = 8 };

struct OpInfo {
  trRedOp_t op;
  const char* name;
  uint8_t kinds;  // KindBit
};

inline constexpr DataTypeInfo kDataTypes[] = {
    {trInt8, "int8", 1, TypeKind::kInteger, false},
    {trUint8, "uint8", 1, TypeKind::kInteger, false},
    {trInt32, "int32", 4, TypeKind::kInteger, false},
    {trUint32, "uint32", 4, TypeKind::kInteger, false},
    {trInt64, "int64", 8, TypeKind::kInteger, false},
    {trUint64, "uint64", 8, TypeKind::kInteger, false},
    {trFloat16, "half", 2, TypeKind::kFloat, true},
    {trFloat32, "float", 4, TypeKind::kFloat, false},
    {trFloat64, "double", 8, TypeKind::kFloat, false},
    {trBfloat16, "bfloat16", 2, TypeKind::kFloat, true},
    {trFloat8e4m3, "f8e4m3", 1, TypeKind::kFloat, true},
    {trFloat8e5m2, "f8e5m2", 1, TypeKind::kFloat, true},
    {trComplex64, "complex64", 8, TypeKind::kComplex, false},
    {trComplex128, "complex128", 16, TypeKind::kComplex, false},
    {trBool, "bool", 1, TypeKind::kBool, false},
};

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

// The row of a type or op, or nullptr for a value that is none.
constexpr const DataTypeInfo* find_type(trDataType_t type) {
  for (const DataTypeInfo& row : kDataTypes)
    if (row.type == type) return &row;
  return nullptr;
}
// "datatype is 15; known are 0 (int8) to 14 (bool)".
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

// Whether an operation is defined for a type; both are known.
constexpr bool supports(const DataTypeInfo& type, const OpInfo& op) {
  return (op.kinds >> static_cast<unsigned>(type.kind) & 1) != 0;
}

// Whether results are truth values, 0 or 1: of bool the bits do not count.
constexpr bool gives_truth(trDataType_t type, trRedOp_t op) {
  return (op >= trLogicalAnd && op <= trLogicalXor) || (type == trBool && op >= trBitAnd && op <= trBitXor);
}

}  // namespace treering
