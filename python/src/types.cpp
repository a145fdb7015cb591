// SPDX-License-Identifier: Apache-2.0
#include "types.h"

#include <cstring>

#include "errors.h"

namespace treering::python {
namespace {

// Codes of DLPack (its DLDataTypeCode).
enum DlpackCode : uint8_t {
  kDlInt = 0,
  kDlUint = 1,
  kDlFloat = 2,
  kDlBfloat = 4,
  kDlComplex = 5,
  kDlBool = 6,
  kDlFloat8E4m3fn = 10,
  kDlFloat8E5m2 = 12
};

void name_float(const trDataTypeInfo_t& info, DataType* type) {
  type->name = "float" + std::to_string(info.bytes * 8);
  type->dlpack_code = kDlFloat;
  if (info.bytes == 2 && info.significant_bits == 8) {
    type->name = "bfloat16";
    type->dlpack_code = kDlBfloat;
  } else if (info.bytes == 1) {
    type->name = info.significant_bits == 4 ? "float8_e4m3fn" : "float8_e5m2";
    type->dlpack_code = info.significant_bits == 4 ? kDlFloat8E4m3fn : kDlFloat8E5m2;
  }
}

DataType describe(trDataType_t number, const trDataTypeInfo_t& info) {
  DataType type{number, info.name, "", info.bytes, info.kind, info.is_signed != 0, kDlInt};
  const std::string bits = std::to_string(info.bytes * 8);
  switch (info.kind) {
    case trKindInteger:
      type.name = (type.is_signed ? "int" : "uint") + bits;
      type.dlpack_code = type.is_signed ? kDlInt : kDlUint;
      break;
    case trKindComplex:
      type.name = "complex" + bits;
      type.dlpack_code = kDlComplex;
      break;
    case trKindBool:
      type.name = "bool";
      type.dlpack_code = kDlBool;
      break;
    default:
      name_float(info, &type);
  }
  return type;
}

template <class Matches>
const DataType* first_that(Matches matches) {
  for (const DataType& type : data_types())
    if (matches(type)) return &type;
  return nullptr;
}

struct NamedOp {
  std::string_view name;
  trRedOp_t op;
};
constexpr NamedOp kOps[] = {
    {"sum", trSum},
    {"prod", trProd},
    {"max", trMax},
    {"min", trMin},
    {"avg", trAvg},
    {"bit_and", trBitAnd},
    {"bit_or", trBitOr},
    {"bit_xor", trBitXor},
    {"logical_and", trLogicalAnd},
    {"logical_or", trLogicalOr},
    {"logical_xor", trLogicalXor},
};

}  // namespace

const std::vector<DataType>& data_types() {
  static const std::vector<DataType> all = [] {
    std::vector<DataType> types;
    trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
    for (int i = 0; trGetDataTypeInfo(static_cast<trDataType_t>(i), &info) == trSuccess; ++i)
      types.push_back(describe(static_cast<trDataType_t>(i), info));
    return types;
  }();
  return all;
}

const DataType& data_type(trDataType_t type) { return data_types()[static_cast<size_t>(type)]; }

std::string names_of_types() {
  std::string names;
  for (const DataType& type : data_types()) names += (names.empty() ? "" : ", ") + type.name;
  return names;
}

const DataType* type_of_name(std::string_view name) {
  return first_that([&](const DataType& type) { return type.name == name || type.library_name == name; });
}

const DataType* type_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes) {
  if (lanes != 1) return nullptr;
  return first_that([&](const DataType& type) { return type.dlpack_code == code && type.bytes * 8 == bits; });
}

const DataType* type_of_kind(char kind, size_t bytes) {
  uint8_t code = kDlInt;
  switch (kind) {
    case 'i':
      code = kDlInt;
      break;
    case 'u':
      code = kDlUint;
      break;
    case 'f':
      code = kDlFloat;
      break;
    case 'c':
      code = kDlComplex;
      break;
    case 'b':
      code = kDlBool;
      break;
    default:
      return nullptr;
  }
  return first_that([&](const DataType& type) { return type.dlpack_code == code && type.bytes == bytes; });
}

const DataType* type_of_format(const char* format, size_t bytes) {
  // No format: bytes.
  if (format == nullptr) return type_of_kind('u', bytes);
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == 'Z') return format[1] != '\0' && format[2] == '\0' ? type_of_kind('c', bytes) : nullptr;
  if (*format == '\0' || format[1] != '\0') return nullptr;
  if (std::strchr("bhilqn", *format) != nullptr) return type_of_kind('i', bytes);
  if (std::strchr("BHILQNc", *format) != nullptr) return type_of_kind('u', bytes);
  if (std::strchr("efd", *format) != nullptr) return type_of_kind('f', bytes);
  return *format == '?' ? type_of_kind('b', bytes) : nullptr;
}

const DataType& type_of_argument(const char* call, const char* argument, nanobind::handle dtype) {
  const nb::object name = python_function("treering._arrays", "name_of_dtype")(dtype);
  const DataType* type = name.is_none() ? nullptr : type_of_name(nb::cast<std::string>(name));
  if (type != nullptr) return *type;
  const std::string came = nb::cast<std::string>(nb::repr(dtype));
  refuse_type(call, std::string(argument) + " is " + came + "; one of " + names_of_types() + " is wanted");
}

bool op_of_name(std::string_view name, trRedOp_t* op) {
  for (const NamedOp& named : kOps)
    if (named.name == name) {
      *op = named.op;
      return true;
    }
  return false;
}

std::string names_of_ops() {
  std::string names;
  for (const NamedOp& named : kOps) names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

}  // namespace treering::python
