// SPDX-License-Identifier: Apache-2.0
// Operations that the program makes: a sum with a factor, or a function in Python.
#pragma once

#include <nanobind/nanobind.h>

#include <mutex>

#include "treering/treering.h"

namespace treering::python {

namespace nb = nanobind;

// Belongs to a communicator, which it keeps.
class Operation {
 public:
  Operation(nb::object comm, trComm_t handle) : comm_(std::move(comm)), comm_handle_(handle) {}
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void make_scaled_sum(nb::handle factor, nb::handle dtype);
  void make_of_function(nb::object function, bool commutative);
  trRedOp_t op() const { return op_; }
  trComm_t comm_handle() const { return comm_handle_; }
  // Raises the first exception of the function since the last call, if there was one.
  void raise_failure();

 private:
  static void reduce(const void* in, void* inout, size_t count, trDataType_t type, void* context);

  nb::object comm_;
  trComm_t comm_handle_;
  trRedOp_t op_ = trRedOpForceInt;
  nb::object function_;
  std::mutex mutex_;
  nb::object failure_;
};

void bind_operations(nb::module_& module);

}  // namespace treering::python
