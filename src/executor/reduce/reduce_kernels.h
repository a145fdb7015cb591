// SPDX-License-Identifier: Apache-2.0
// The families of kernels behind reduce(), each compiled once for every target and dispatched at run
// time.
//
// They take a checked call: at least one source, one destination and one element, and with `op` avg a divisor
// of two or more.
#pragma once

#include <cstddef>

#include "executor/reduce/reduce.h"

namespace treering {

// The floating types of core/data_types.h.
void reduce_float(const ReduceCall& call);

// Its integers.
void reduce_integer(const ReduceCall& call);

// Bitwise and logical operations on integers and bool.
void reduce_logical(const ReduceCall& call);

// Its complex types.
void reduce_complex(const ReduceCall& call);

// ReduceCall::user.
void reduce_user(const ReduceCall& call);

// Name of the target that the above are dispatched to.
const char* kernel_target();

}  // namespace treering
