// SPDX-License-Identifier: Apache-2.0
// Reduction kernels of the bitwise and logical operations: integers, and truth values as bytes.
#include "core/types.h"
#include "executor/reduce/reduce_targets.h"

// The order matters: foreach_target.h includes this file again for each target, then comes the last one.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/reduce/reduce_logical.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "executor/reduce/reduce-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace treering {
namespace HWY_NAMESPACE {

template <class T>
void logical_by_op(const ReduceCall& call) {
  const Walk walk{call};
  switch (call.op) {
    case trLogicalAnd:
      return reduce_all<Plain<T>, Logical<BitAnd>>(walk);
    case trLogicalOr:
      return reduce_all<Plain<T>, Logical<BitOr>>(walk);
    default:
      return reduce_all<Plain<T>, Logical<BitXor>>(walk);
  }
}

// Bits are bits: every type goes as bytes.
void logical_kernel(const ReduceCall& call) {
  const Walk walk{call};
  switch (call.op) {
    case trBitAnd:
      return reduce_all<Plain<uint8_t>, BitAnd>(walk);
    case trBitOr:
      return reduce_all<Plain<uint8_t>, BitOr>(walk);
    case trBitXor:
      return reduce_all<Plain<uint8_t>, BitXor>(walk);
    default:
      break;
  }
  switch (call.type) {
#define TR_CASE(code, kernels, name, storage, ...) \
  case code:                                       \
    return logical_by_op<std::make_unsigned_t<storage>>(call);
    TR_DATA_TYPES(TR_CASE, TR_NO_ROW, TR_NO_ROW, TR_CASE)
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

HWY_EXPORT(logical_kernel);

void reduce_logical(const ReduceCall& call) {
  ReduceCall units = call;
  if (call.op <= trBitXor) units.count *= find_type(call.type)->size;
  HWY_DYNAMIC_DISPATCH(logical_kernel)(units);
}

}  // namespace treering
#endif
