// SPDX-License-Identifier: Apache-2.0
// Compression on the wire, double buffering, groups and persistent operations.
#pragma once

#include <nanobind/nanobind.h>

#include "communicator.h"

namespace treering::python {

class Compression {
 public:
  Compression(nb::handle wire, bool error_feedback, size_t count);
  ~Compression() { trCompressionDestroy(handle_); }
  Compression(const Compression&) = delete;
  Compression& operator=(const Compression&) = delete;
  trCompression_t handle() const { return handle_; }

 private:
  trCompression_t handle_ = nullptr;
};

// The mean of the gradients of one step while the next one is computed.
class DoubleBuffer {
 public:
  DoubleBuffer(nb::object comm, nb::handle dtype, bool owned, bool restart, nb::object compression);
  ~DoubleBuffer();
  DoubleBuffer(const DoubleBuffer&) = delete;
  DoubleBuffer& operator=(const DoubleBuffer&) = delete;
  // Owned: True or False. Else the arrays of the step before, or None.
  nb::object exchange(nb::handle tensors);
  nb::object flush();

 private:
  [[noreturn]] void fail(trResult_t code);
  nb::object ended(int ready, nb::list handed_out);

  nb::object comm_, compression_;
  trDataType_t type_;
  bool owned_;
  trComm_t comm_handle_;
  trDoubleBuffer_t handle_ = nullptr;
  nb::list pending_;  // the arrays of the last step, which the library works on or writes into
  std::vector<View> views_;
  std::vector<View> retained_;  // of exchanges that failed: the library may work on them until a later one succeeds
};

void bind_training(nb::module_& module);
// Groups and persistent operations (groups.cpp).
void bind_groups(nb::module_& module);

}  // namespace treering::python
