// SPDX-License-Identifier: Apache-2.0
#include "executor/reduce/reduce.h"

#include <cstring>

#include "core/types.h"
#include "executor/reduce/reduce_kernels.h"
#include "executor/reduce/reduce_targets.h"
#include "hwy/cache_control.h"

namespace treering {
namespace {

inline constexpr size_t kMaskBits = 64;
inline constexpr size_t kStreamingMinBytes = 1024;  // below, aligning the destination costs more than it saves

bool has_bit(uint64_t mask, size_t i) { return i < kMaskBits && ((mask >> i) & 1) != 0; }

void run_kernel(const ReduceCall& call) {
  if (call.op >= trBitAnd) {
    ReduceCall truth = call;
    // The bits of truth values do not count.
    if (gives_truth(call.type, call.op) && call.op <= trBitXor)
      truth.op = static_cast<trRedOp_t>(call.op + (trLogicalAnd - trBitAnd));
    return reduce_logical(truth);
  }
  switch (find_type(call.type)->kind) {
    case TypeKind::kFloat:
      return reduce_float(call);
    case TypeKind::kComplex:
      return reduce_complex(call);
    default:
      return reduce_integer(call);
  }
}

// The bytes of one source to several destinations, as they are (no NaN is made quiet).
void copy_to_all(const ReduceCall& call, size_t bytes) {
  if (call.destination_count == 1)
    return copy(call.destinations[0], call.sources[0], bytes, has_bit(call.streaming, 0));
  ReduceCall as_bytes = call;
  as_bytes.type = trUint8;
  as_bytes.op = trSum;
  as_bytes.count = bytes;
  reduce_integer(as_bytes);
}

// The truth of one source, which no kernel combines with another: x or x.
void reduce_to_truth(const ReduceCall& call) {
  const void* const twice[] = {call.sources[0], call.sources[0]};
  const uint8_t flags[] = {call.flags_of(0), call.flags_of(0)};
  ReduceCall both = call;
  both.source_flags = flags;
  both.op = trLogicalOr;
  both.sources = twice;
  both.source_count = 2;
  reduce_logical(both);
}

// One source and nothing to divide by: a copy, and a conversion for destinations of another width.
void reduce_one_source(const ReduceCall& call) {
  if (call.user == nullptr && gives_truth(call.type, call.op)) return reduce_to_truth(call);
  const DataTypeInfo* type = find_type(call.type);
  if (!type->narrow_float) return copy_to_all(call, call.count * type->size);

  const bool wide_source = (call.flags_of(0) & kWideSource) != 0;
  for (size_t k = 0; k < call.destination_count; ++k) {
    ReduceCall one = call;
    one.destinations = call.destinations + k;
    one.destination_count = 1;
    one.streaming = has_bit(call.streaming, k);
    one.wide_destinations = has_bit(call.wide_destinations, k);
    const bool rounds = call.round_wide && one.wide_destinations != 0;
    if ((one.wide_destinations != 0) == wide_source && !rounds) {
      copy_to_all(one, call.count * (wide_source ? sizeof(float) : type->size));
    } else {
      run_kernel(one);
    }
  }
}

}  // namespace

void reduce(const ReduceCall& call) {
  if (call.count == 0 || call.source_count == 0 || call.destination_count == 0) return;
  const bool divides = call.op == trAvg && call.divisor > 1;
  if (call.user != nullptr && call.source_count > 1) return reduce_user(call);
  if (call.source_count == 1 && !divides && (call.flags_of(0) & (kScaledSource | kRoundedSource)) == 0)
    return reduce_one_source(call);
  if (call.op == trAvg && !divides) {
    ReduceCall sum = call;
    sum.op = trSum;
    return run_kernel(sum);
  }
  run_kernel(call);
}

void copy(void* destination, const void* source, size_t bytes, bool streaming) {
  if (bytes == 0 || destination == source) return;
  if (!streaming || bytes < kStreamingMinBytes) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const void* const sources[] = {source};
  void* const destinations[] = {destination};
  ReduceCall call;
  call.type = trUint8;
  call.sources = sources;
  call.source_count = 1;
  call.destinations = destinations;
  call.destination_count = 1;
  call.streaming = 1;
  call.count = bytes;
  reduce_integer(call);
}

// On x86 non-temporal stores pass the ordinary ones, and only this instruction (through a builtin that the compiler
// moves no store across) holds them back; on the other architectures the release store that tells of the data does.
void streaming_fence() { hwy::FlushStream(); }

const char* reduce_target() { return kernel_target(); }

}  // namespace treering
