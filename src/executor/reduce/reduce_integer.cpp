// SPDX-License-Identifier: Apache-2.0
// Reduction kernels of the integer types.
#include "core/data_types.h"
#include "executor/reduce/reduce_targets.h"

// The order matters: foreach_target.h includes this file again for each target, then comes the last one.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/reduce/reduce_integer.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "executor/reduce/reduce-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace treering {
namespace HWY_NAMESPACE {

// Wrapping sums and products are the same bits for signed and unsigned; only the comparisons and the division
// differ.
template <class T>
void integer_by_op(const ReduceCall& call) {
  using Wrapping = Plain<std::make_unsigned_t<T>>;
  Walk walk{call};
  if (call.scale != nullptr) {
    T scale;
    std::memcpy(&scale, call.scale, sizeof scale);
    walk.integer_scale = static_cast<uint64_t>(scale);
  }
  switch (call.op) {
    case trSum:
      return reduce_all<Wrapping, Sum>(walk);
    case trProd:
      return reduce_all<Wrapping, Prod>(walk);
    case trMax:
      return reduce_all<Plain<T>, Max>(walk);
    case trMin:
      return reduce_all<Plain<T>, Min>(walk);
    default:  // trAvg
      break;
  }
  walk.finish = Finish::kDivide;
  reduce_all<Plain<T>, Sum>(walk);
}

void integer_kernel(const ReduceCall& call) {
  switch (call.type) {
#define TR_CASE(code, kernels, name, storage, ...) \
  case code:                                       \
    return integer_by_op<storage>(call);
    TR_DATA_TYPES(TR_CASE, TR_NO_ROW, TR_NO_ROW, TR_NO_ROW)
#undef TR_CASE
    default:
      break;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace treering
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treering {

HWY_EXPORT(integer_kernel);

void reduce_integer(const ReduceCall& call) { HWY_DYNAMIC_DISPATCH(integer_kernel)(call); }

}  // namespace treering
#endif
