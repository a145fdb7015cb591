// The two families of kernels behind reduce(), each compiled once for every target and dispatched at run
// time.
//
// They take a checked call: at least one source, one destination and one element, and with `op` avg a divisor
// of two or more.
#pragma once

#include <cstddef>

#include "executor/reduce.h"

namespace treering {

// float16, bfloat16, float32, float64.
void reduce_float(const ReduceCall& call);

// int8, uint8, int32, uint32, int64, uint64.
void reduce_integer(const ReduceCall& call);

// Name of the target that the above are dispatched to.
const char* kernel_target();

}  // namespace treering
