// SPDX-License-Identifier: Apache-2.0
// The calls of a communicator as methods of its Python class: each is a C function, with its arrays' places and shapes.
#pragma once

#include <nanobind/nanobind.h>

#include "communicator.h"

namespace treering::python {

using CommunicatorClass = nb::class_<Communicator>;

// Adds the collectives with equal blocks (collectives.cpp).
void bind_collectives(CommunicatorClass& communicator);
// Adds those with a count for each rank (variable_counts.cpp).
void bind_variable_counts(CommunicatorClass& communicator);
// Sends and receives (point_to_point.cpp).
void bind_point_to_point(CommunicatorClass& communicator);

// The shape of `view` with another number of rows; an array without axes counts as one row.
std::vector<int64_t> with_rows(const View& view, size_t rows);
// Rows of each of `ranks` equal blocks.
size_t rows_of_block(const Call& call, const View& view);
// Raises where there is no such rank.
void check_root(const Call& call, int root, const char* argument);

}  // namespace treering::python
