// SPDX-License-Identifier: Apache-2.0
#include "datatypes.h"

#include <vector>

namespace treering::perf {
namespace {

constexpr DataType kDataTypes[] = {
    {"int8", trInt8, 1, false, true, 1, 6},           {"uint8", trUint8, 1, false, false, 1, 7},
    {"int32", trInt32, 4, false, true, 1, 30},        {"uint32", trUint32, 4, false, false, 1, 31},
    {"int64", trInt64, 8, false, true, 1, 62},        {"uint64", trUint64, 8, false, false, 1, 63},
    {"half", trFloat16, 2, true, true, 1, 11},        {"float", trFloat32, 4, true, true, 1, 24},
    {"double", trFloat64, 8, true, true, 1, 53},      {"bfloat16", trBfloat16, 2, true, true, 1, 8},
    {"f8e4m3", trFloat8e4m3, 1, true, true, 1, 4},    {"f8e5m2", trFloat8e5m2, 1, true, true, 1, 3},
    {"complex64", trComplex64, 8, true, true, 2, 24}, {"complex128", trComplex128, 16, true, true, 2, 53},
    {"bool", trBool, 1, false, false, 1, 1},
};

constexpr Operation kOperations[] = {{"sum", trSum},       {"prod", trProd},      {"max", trMax},
                                     {"min", trMin},       {"avg", trAvg},        {"bitand", trBitAnd},
                                     {"bitor", trBitOr},   {"bitxor", trBitXor},  {"land", trLogicalAnd},
                                     {"lor", trLogicalOr}, {"lxor", trLogicalXor}};

// Names of this library's own API, beside those of nccl-tests.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"float16", "half"}, {"float32", "float"}, {"float64", "double"}, {"bf16", "bfloat16"}, {"fp16", "half"}};

template <typename Table>
std::string names(const Table& table) {
  std::string text;
  for (const auto& row : table) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

}  // namespace

std::span<const DataType> data_types() { return kDataTypes; }
std::span<const Operation> operations() { return kOperations; }

const DataType* find_data_type(const std::string& name) {
  std::string wanted = name;
  for (const auto& [alias, real] : kAliases) {
    if (name == alias) wanted = real;
  }
  for (const DataType& type : kDataTypes) {
    if (wanted == type.name) return &type;
  }
  return nullptr;
}

const Operation* find_operation(const std::string& name) {
  for (const Operation& operation : kOperations) {
    if (name == operation.name) return &operation;
  }
  return nullptr;
}

bool is_defined(const DataType& type, const Operation& operation) {
  if (operation.id >= trBitAnd) return !type.is_float;
  if (type.id == trBool) return false;
  return type.lanes == 1 || (operation.id != trMax && operation.id != trMin);
}

std::string data_type_names() { return names(kDataTypes); }
std::string operation_names() { return names(kOperations); }

std::string operation_names(const DataType* type) {
  std::vector<Operation> defined;
  for (const Operation& operation : kOperations)
    if (is_defined(*type, operation)) defined.push_back(operation);
  return names(defined);
}

}  // namespace treering::perf
