// SPDX-License-Identifier: Apache-2.0
// Exchange of boxes of a distributed array, allreduce of sparse rows, and memory that other ranks map.
#pragma once

#include <nanobind/nanobind.h>

#include "collectives.h"

namespace treering::python {

void bind_sparse(nb::module_& module, CommunicatorClass& communicator);
// treering.empty() and Communicator.register() (memory.cpp).
void bind_memory(nb::module_& module, CommunicatorClass& communicator);

}  // namespace treering::python
