// SPDX-License-Identifier: Apache-2.0
// The data types, which the library tells, and the operations, by the names that nccl-tests users type.
#pragma once

#include <treering/treering.h>

#include <cstddef>
#include <span>
#include <string>

namespace treering::perf {

struct DataType {
  const char* name;
  trDataType_t id;
  size_t bytes;
  bool is_float;
  bool is_signed;
  bool is_truth;
  int lanes;          // numbers in an element: 2 for complex ones, of half its bytes each
  trDataType_t part;  // the type of such a number
  int fraction_bits;  // of floats
  int exact_bits;     // every integer of magnitude up to 2^exact_bits is represented (of the positive half, for
                      // integers)
};

struct Operation {
  const char* name;
  trRedOp_t id;
};

// Whether the library defines the operation for the type.
bool is_defined(const DataType& type, const Operation& operation);

std::span<const DataType> data_types();
std::span<const Operation> operations();

// Null when the name is unknown.
const DataType* find_data_type(const std::string& name);
const Operation* find_operation(const std::string& name);

// "int8, uint8, ...": for messages.
std::string data_type_names();
std::string operation_names();
std::string operation_names(const DataType* type);  // those that it has

}  // namespace treering::perf
