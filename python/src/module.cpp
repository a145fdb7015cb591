// SPDX-License-Identifier: Apache-2.0
// The extension module: treering._native.
#include "management.h"
#include "operations.h"
#include "sparse.h"
#include "training.h"

NB_MODULE(_native, module) {
  namespace nb = nanobind;
  using namespace treering::python;
  // A program that ends with objects alive is no leak to report; the library's own are closed by close_all().
  nb::set_leak_warnings(false);
  module.doc() = "The C API of Treering for treering/__init__.py.";
  bind_requests(module);
  bind_operations(module);
  bind_training(module);
  bind_groups(module);
  CommunicatorClass communicator(module, "CommunicatorBase", nb::is_weak_referenceable(),
                                 "One rank's handle of a communicator; treering.Communicator.");
  bind_state(communicator);
  bind_making(communicator);
  bind_collectives(communicator);
  bind_variable_counts(communicator);
  bind_point_to_point(communicator);
  bind_sparse(module, communicator);
  bind_memory(module, communicator);
  bind_starts(module);
}
