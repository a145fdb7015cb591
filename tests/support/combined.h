// SPDX-License-Identifier: Apache-2.0
// What a reduction makes of two values, for the references of tests.
#pragma once

#include <algorithm>

namespace treering::testing {

// `product`, `most` and `least`: what the interface under test calls these operations; any other one adds.
template <class Op>
double combined(Op op, Op product, Op most, Op least, double a, double b) {
  if (op == product) return a * b;
  if (op == most) return std::max(a, b);
  if (op == least) return std::min(a, b);
  return a + b;
}

}  // namespace treering::testing
