// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include "arrays.h"
#include "communicator.h"
#include "errors.h"
#include "types.h"

namespace treering::python {

Operation::~Operation() {
  // The library waits for no call here, and refuses where the communicator has been closed, which ended it.
  if (op_ != trRedOpForceInt) trRedOpDestroy(op_, comm_handle_);
}

void Operation::make_scaled_sum(nb::handle factor, nb::handle dtype) {
  const DataType& type = type_of_argument("scaled_sum", "dtype", dtype);
  const nb::object element = python_function("treering._arrays", "element")(factor, type.name);
  const View view = view_of(element, Access::kRead, "scaled_sum", "factor");
  check(trRedOpCreatePreMulSum(&op_, view.data(), type.type, comm_handle_));
}

void Operation::make_of_function(nb::object function, bool commutative) {
  function_ = std::move(function);
  check(trRedOpCreateUser(&op_, &Operation::reduce, this, commutative ? 1 : 0, comm_handle_));
}

// The library has no way to hand on a failure of a function: it is kept for the end of the call, whose result is not
// to be used.
void Operation::reduce(const void* in, void* inout, size_t count, trDataType_t type, void* context) {
  auto* self = static_cast<Operation*>(context);
  nb::gil_scoped_acquire acquire;
  try {
    const DataType& of = data_type(type);
    const auto bytes = static_cast<Py_ssize_t>(count * of.bytes);
    auto memory = [&](const void* begin, int flags) {
      return nb::steal(PyMemoryView_FromMemory(static_cast<char*>(const_cast<void*>(begin)), bytes, flags));
    };
    python_function("treering._arrays", "apply")(self->function_, memory(in, PyBUF_READ), memory(inout, PyBUF_WRITE),
                                                 of.name);
  } catch (nb::python_error& error) {
    std::lock_guard lock(self->mutex_);
    if (!self->failure_.is_valid()) self->failure_ = nb::borrow(error.value());
  }
}

void Operation::raise_failure() {
  nb::object failure;
  {
    std::lock_guard lock(mutex_);
    failure = std::move(failure_);
  }
  if (!failure.is_valid()) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(failure.ptr())), failure.ptr());
  throw nb::python_error();
}

void bind_operations(nb::module_& module) {
  nb::class_<Operation>(module, "Operation",
                        "An operation of a communicator, for `op=`: Communicator.scaled_sum() and "
                        "Communicator.operation() make one.");
}

}  // namespace treering::python
