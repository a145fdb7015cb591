// SPDX-License-Identifier: Apache-2.0
// Verification data: inputs whose allreduce is exact in every data type and any order, and the comparison
// with it.
//
// An element is a function of (rank, index modulo kPeriod, seed). The period makes input and expected output
// one table each, so that checking costs a memcmp; it is prime, so that no two chunks at power-of-two
// distances are equal.
//
//   index   0 ............ 65520 | 65521 ....       chunks of 2^k elements never line up with the period
//           <---- kPeriod -----> | the same again
//
// How values are chosen, so that every partial result, in any order of the ranks, is exact:
//   sum, avg   integers of magnitude up to 2^exact_bits / ranks (integer types wrap, so their sums take any
//   bits) prod       powers of two and a few threes for floats; odd integers for integer types, which wrap
//   max, min   integers of the exact range
//   bitwise, logical   any bits; zeros among the logical ones
// Complex numbers are pairs of such floats; for products their imaginary part is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "datatypes.h"

namespace treering::perf {

inline constexpr size_t kPeriod = 65521;

// Fills `count` elements with the input of `rank`, from its index `first` on.
void fill_input(void* buffer, size_t count, const DataType& type, trRedOp_t op, int rank, int ranks, uint64_t seed,
                size_t first = 0);

// What overwrites a buffer, so that a result that was never written is seen.
inline constexpr unsigned char kPoison = 0xa5;

// Number of elements of `result` that differ from the combination of all inputs from index `first` on: bit for bit, but
// for the average of floats, which may be 2 units in the last place off, and the sign of a complex number's zeros.
size_t count_wrong(const void* result, size_t count, const DataType& type, trRedOp_t op, int ranks, uint64_t seed,
                   size_t first = 0);
// The same for a copy of one rank's input.
size_t count_different(const void* result, size_t count, const DataType& type, trRedOp_t op, int source, int ranks,
                       uint64_t seed, size_t first);

// For tests: one element of the input as a number (integers as their bits), and conversions of 16-bit floats.
double input_float(const DataType& type, trRedOp_t op, size_t index, int rank, int ranks, uint64_t seed);
uint64_t input_bits(const DataType& type, trRedOp_t op, size_t index, int rank, int ranks, uint64_t seed);
uint64_t encode_float(const DataType& type, double value);
double decode_float(const DataType& type, uint64_t bits);

}  // namespace treering::perf
