// Data types and reduction operations: one table row each, used by the kernels, the API's checks and the tools.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "treering/treering.h"

namespace treering {

struct DataTypeInfo {
  trDataType_t type;
  const char* name;
  size_t size;      // bytes
  bool narrow_float;  // a 16-bit float: accumulated in float32
};

struct OpInfo {
  trRedOp_t op;
  const char* name;
};

inline constexpr DataTypeInfo kDataTypes[] = {
    {trInt8, "int8", 1, false},      {trUint8, "uint8", 1, false},      {trInt32, "int32", 4, false},
    {trUint32, "uint32", 4, false},  {trInt64, "int64", 8, false},      {trUint64, "uint64", 8, false},
    {trFloat16, "half", 2, true},    {trFloat32, "float", 4, false},    {trFloat64, "double", 8, false},
    {trBfloat16, "bfloat16", 2, true},
};

inline constexpr OpInfo kOps[] = {
    {trSum, "sum"}, {trProd, "prod"}, {trMax, "max"}, {trMin, "min"}, {trAvg, "avg"},
};

// The row of a type or op, or nullptr for a value that is none.
constexpr const DataTypeInfo* find_type(trDataType_t type) {
  for (const DataTypeInfo& row : kDataTypes)
    if (row.type == type) return &row;
  return nullptr;
}
constexpr const OpInfo* find_op(trRedOp_t op) {
  for (const OpInfo& row : kOps)
    if (row.op == op) return &row;
  return nullptr;
}

inline std::string why_unsupported(trDataType_t, trRedOp_t) { return {}; }
}  // namespace treering
