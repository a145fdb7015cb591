// SPDX-License-Identifier: Apache-2.0
#include "datatypes.h"

#include <algorithm>
#include <vector>

#include "spelling.h"

namespace treering::perf {
namespace {

// Floats of 8 bits with a long fraction end before its integers do.
int exact_bits_of(const trDataTypeInfo_t& info) {
  if (info.kind == trKindInteger) return info.significant_bits - 1;
  if (info.kind != trKindFloat || info.bytes > 1) return info.significant_bits;
  const int exponent_bits = 8 - info.significant_bits;
  return std::min(info.significant_bits, (1 << (exponent_bits - 1)) - 1);
}

// All types of the library that is loaded.
std::vector<DataType> types_of_library() {
  std::vector<DataType> types;
  trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
  for (int id = 0; trGetDataTypeInfo(static_cast<trDataType_t>(id), &info) == trSuccess; ++id) {
    const bool complex = info.kind == trKindComplex;
    types.push_back({.name = info.name,
                     .id = static_cast<trDataType_t>(id),
                     .bytes = info.bytes,
                     .is_float = complex || info.kind == trKindFloat,
                     .is_signed = info.is_signed != 0,
                     .is_truth = info.kind == trKindBool,
                     .lanes = complex ? 2 : 1,
                     .part = info.part,
                     .fraction_bits = info.significant_bits - 1,
                     .exact_bits = exact_bits_of(info)});
  }
  return types;
}

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

std::span<const DataType> data_types() {
  static const std::vector<DataType> types = types_of_library();
  return types;
}
std::span<const Operation> operations() { return kOperations; }

const DataType* find_data_type(const std::string& name) {
  std::string wanted = tools::letters_of(name);
  for (const auto& [alias, real] : kAliases) {
    if (wanted == alias) wanted = real;
  }
  for (const DataType& type : data_types()) {
    if (wanted == tools::letters_of(type.name)) return &type;
  }
  return nullptr;
}

const Operation* find_operation(const std::string& name) {
  for (const Operation& operation : kOperations) {
    if (tools::letters_of(name) == tools::letters_of(operation.name)) return &operation;
  }
  return nullptr;
}

bool is_defined(const DataType& type, const Operation& operation) {
  if (operation.id >= trBitAnd) return !type.is_float;
  if (type.is_truth) return false;
  return type.lanes == 1 || (operation.id != trMax && operation.id != trMin);
}

std::string data_type_names() { return names(data_types()); }
std::string operation_names() { return names(kOperations); }

std::string operation_names(const DataType* type) {
  std::vector<Operation> defined;
  for (const Operation& operation : kOperations)
    if (is_defined(*type, operation)) defined.push_back(operation);
  return names(defined);
}

}  // namespace treering::perf
