// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "backend.h"
#include "compression.h"

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
  using treering::pytorch::Compression;
  pybind11::class_<Compression, std::shared_ptr<Compression>>(module, "Compression")
      .def(pybind11::init(
               torch::wrap_pybind_function_no_gil([](const std::string& wire, bool error_feedback, int64_t count) {
                 return std::make_shared<Compression>(wire, error_feedback, count);
               })),
           pybind11::arg("wire"), pybind11::arg("error_feedback"), pybind11::arg("count"));
  module.def("average", torch::wrap_pybind_function_no_gil(&treering::pytorch::average));
  module.def("make", torch::wrap_pybind_function_no_gil(&treering::pytorch::make));
  module.def("close_all", torch::wrap_pybind_function_no_gil(&treering::pytorch::close_all));
}
