// SPDX-License-Identifier: Apache-2.0
// Failures as Python exceptions.
//
// The library says what failed and why; treering/_errors.py has one class for each result code. Arguments that the
// library cannot judge, because it sees addresses and counts alone, are refused here in the same manner:
//
//   allreduce: out has 3 elements; 4 are wanted, as many as x has
//   +-- call   +-- argument, what came    +-- what is wanted
//
// nanobind hands C++ exceptions to Python, so that this folder throws where the library returns a Status.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "treering/treering.h"

namespace treering::python {

namespace nb = nanobind;

// Raises the exception of `code`.
[[noreturn]] void raise(trResult_t code, const std::string& message);
// Nothing for trSuccess; else raises the message that the library has for the calling thread.
void check(trResult_t code);
// An argument of another value than is wanted (InvalidArgument), or of another type (InvalidType).
[[noreturn]] void refuse(const char* call, const std::string& what);
[[noreturn]] void refuse_type(const char* call, const std::string& what);
// "a list", "a numpy.ndarray": what an argument is, for messages.
std::string kind_of(nb::handle object);
// A Python function of treering's module `module`.
nb::object python_function(const char* module, const char* name);

}  // namespace treering::python
