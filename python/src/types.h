// SPDX-License-Identifier: Apache-2.0
// The library's data types and operations under the names that array libraries have for them.
//
// There is one table of types, the library's own (trGetDataTypeInfo): what a type is called elsewhere follows from its
// kind, its bytes and its significant bits. A type that the library gains is known here without a change.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "treering/treering.h"

namespace treering::python {

struct DataType {
  trDataType_t type;
  std::string library_name;  // "half"
  std::string name;          // "float16", as NumPy, ml_dtypes, PyTorch and JAX have it
  size_t bytes;
  trDataTypeKind_t kind;
  bool is_signed;
  uint8_t dlpack_code;
};

const std::vector<DataType>& data_types();
const DataType& data_type(trDataType_t type);
// "float16, float32, ...": all that there are, for messages.
std::string names_of_types();

// nullptr: the library has none.
const DataType* type_of_name(std::string_view name);
const DataType* type_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes);
// A format of the buffer protocol ("<f", "Zd") with the bytes of an element.
const DataType* type_of_format(const char* format, size_t bytes);
// The kind of a typestr of the array interface ('f' of "<f4"), with the bytes of an element.
const DataType* type_of_kind(char kind, size_t bytes);

// A dtype argument: a name, numpy.float32, numpy.dtype, torch.float32, ...
const DataType& type_of_argument(const char* call, const char* argument, nanobind::handle dtype);

// An operation by its name; false where there is none.
bool op_of_name(std::string_view name, trRedOp_t* op);
std::string names_of_ops();

}  // namespace treering::python
