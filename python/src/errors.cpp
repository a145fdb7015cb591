// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

namespace treering::python {

void raise(trResult_t code, const std::string& message) {
  nb::object error = python_function("treering._errors", "error_of")(
      static_cast<int>(code), message.empty() ? trGetErrorString(code) : message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void check(trResult_t code) {
  if (code == trSuccess) return;
  // Copied before Python code runs, which may call the library.
  const std::string message = trGetLastError(nullptr);
  raise(code, message);
}

void refuse(const char* call, const std::string& what) { raise(trInvalidArgument, std::string(call) + ": " + what); }

void refuse_type(const char* call, const std::string& what) {
  nb::object error = python_function("treering._errors", "InvalidType")(std::string(call) + ": " + what);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

std::string kind_of(nb::handle object) {
  if (object.is_none()) return "None";
  nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  const std::string module = nb::cast<std::string>(nb::str(type.attr("__module__")));
  const std::string name = nb::cast<std::string>(nb::str(type.attr("__qualname__")));
  return "of type " + (module == "builtins" ? name : module + "." + name);
}

nb::object python_function(const char* module, const char* name) { return nb::module_::import_(module).attr(name); }

}  // namespace treering::python
