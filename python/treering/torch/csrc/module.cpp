// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "backend.h"

namespace treering::pytorch {

c10::intrusive_ptr<c10d::Backend> make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       std::chrono::milliseconds timeout, const std::string& name) {
  return c10::make_intrusive<Backend>(store, rank, size, timeout, name);
}

void close_all() {
  Backend::close_all();
  Finisher::instance().stop();
}

}  // namespace treering::pytorch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("make", torch::wrap_pybind_function_no_gil(&treering::pytorch::make));
  module.def("close_all", torch::wrap_pybind_function_no_gil(&treering::pytorch::close_all));
}
