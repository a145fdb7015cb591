#include "datatypes.h"

namespace treering::perf {
namespace {

constexpr DataType kDataTypes[] = {
    {"int8", trInt8, 1, false, true, 6},      {"uint8", trUint8, 1, false, false, 7},
    {"int32", trInt32, 4, false, true, 30},   {"uint32", trUint32, 4, false, false, 31},
    {"int64", trInt64, 8, false, true, 62},   {"uint64", trUint64, 8, false, false, 63},
    {"half", trFloat16, 2, true, true, 11},   {"float", trFloat32, 4, true, true, 24},
    {"double", trFloat64, 8, true, true, 53}, {"bfloat16", trBfloat16, 2, true, true, 8},
};

constexpr Operation kOperations[] = {
    {"sum", trSum}, {"prod", trProd}, {"max", trMax}, {"min", trMin}, {"avg", trAvg}};

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

std::string data_type_names() { return names(kDataTypes); }
std::string operation_names() { return names(kOperations); }

}  // namespace treering::perf
