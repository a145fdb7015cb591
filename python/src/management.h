// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "collectives.h"

namespace treering::python {

// Split, dup, shrink and grow.
void bind_making(CommunicatorClass& communicator);
// What a communicator is asked, its operations, and its end.
void bind_state(CommunicatorClass& communicator);
// The functions that make a process's first communicator.
void bind_starts(nb::module_& module);

}  // namespace treering::python
