// SPDX-License-Identifier: Apache-2.0
// Reduction kernels of the floating-point types.
#include "core/data_types.h"
#include "executor/reduce/reduce_targets.h"

// The order matters: foreach_target.h includes this file again for each target, then comes the last one.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/reduce/reduce_float.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "executor/reduce/reduce-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace treering {
namespace HWY_NAMESPACE {

template <class Type>
double scale_of(const void* scale) {
  if constexpr (Type::kNarrow) {
    typename Type::Storage bits;
    std::memcpy(&bits, scale, sizeof bits);
    const hn::CappedTag<float, 1> d;
    const hn::Rebind<typename Type::Storage, decltype(d)> narrow;
    return static_cast<double>(hn::GetLane(Type::widen(d, hn::Set(narrow, bits))));
  } else {
    typename Type::Compute value;
    std::memcpy(&value, scale, sizeof value);
    return static_cast<double>(value);
  }
}

template <class Type, class Op>
void float_reduce(const Walk& walk) {
  if constexpr (Type::kNarrow) {
    uint8_t flags = 0;
    for (size_t s = 0; s < walk.call.source_count; ++s) flags |= walk.call.flags_of(s);
    if (flags != 0) return reduce_all<Flagged<Type>, Op>(walk);
  }
  reduce_all<Type, Op>(walk);
}

template <class Type>
void float_by_op(const ReduceCall& call) {
  Walk walk{call};
  if (call.scale != nullptr) walk.scale = scale_of<Type>(call.scale);
  switch (call.op) {
    case trSum:
      return float_reduce<Type, Sum>(walk);
    case trProd:
      return float_reduce<Type, Prod>(walk);
    case trMax:
      return float_reduce<Type, Max>(walk);
    case trMin:
      return float_reduce<Type, Min>(walk);
    default:  // trAvg
      break;
  }
  // Multiplying by the reciprocal of a power of two rounds as the division does, and is several times as
  // fast.
  const bool power_of_two = (call.divisor & (call.divisor - 1)) == 0;
  walk.finish = power_of_two ? Finish::kMultiply : Finish::kDivide;
  walk.factor = power_of_two ? 1.0 / call.divisor : call.divisor;
  float_reduce<Type, Sum>(walk);
}

void float_kernel(const ReduceCall& call) {
  switch (call.type) {
#define TR_CASE(code, kernels, name, storage, bits, representation) \
  case code:                                                        \
    static_assert(representation::kBytes == sizeof(storage));       \
    return float_by_op<representation>(call);
    TR_DATA_TYPES(TR_NO_ROW, TR_CASE, TR_NO_ROW, TR_NO_ROW)
#undef TR_CASE
    default:
      break;
  }
}

const char* float_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace treering
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treering {

HWY_EXPORT(float_kernel);
HWY_EXPORT(float_target);

void reduce_float(const ReduceCall& call) { HWY_DYNAMIC_DISPATCH(float_kernel)(call); }
const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(float_target)(); }

}  // namespace treering
#endif
