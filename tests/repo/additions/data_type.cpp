// SPDX-License-Identifier: Apache-2.0
// The types that additions_test.py has added: what is known of them, their results by the host's kernels, as the perf
// tools expect them, and by the device's arithmetic.
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/types.h"
#include "data.h"
#include "device/kernels.h"
#include "executor/reduce/reduce.h"

using namespace treering;

// As src/api/api.cpp answers, which is not linked.
extern "C" trResult_t trGetDataTypeInfo(trDataType_t type, trDataTypeInfo_t* info) {
  const DataTypeInfo* row = find_type(type);
  if (row != nullptr) *info = public_info(*row);
  return row != nullptr ? trSuccess : trInvalidArgument;
}

namespace {

constexpr size_t kCount = 1003;
constexpr int kRanks = 3;
constexpr uint64_t kSeed = 1;

using Inputs = std::vector<std::vector<std::byte>>;

std::vector<std::byte> by_host(const perf::DataType& type, trRedOp_t op, const Inputs& inputs) {
  std::vector<std::byte> result(kCount * type.bytes);
  const void* sources[kRanks];
  for (size_t r = 0; r < kRanks; ++r) sources[r] = inputs[r].data();
  void* const destinations[] = {result.data()};
  ReduceCall call;
  call.type = type.id;
  call.op = op;
  call.divisor = kRanks;
  call.sources = sources;
  call.source_count = kRanks;
  call.destinations = destinations;
  call.destination_count = 1;
  call.count = kCount;
  reduce(call);
  return result;
}

template <class Number>
void combine_elements(trRedOp_t op, const Inputs& inputs, std::vector<std::byte>* result) {
  using Storage = typename Number::Storage;
  for (size_t i = 0; i < kCount; ++i) {
    typename Number::Compute value{};
    for (size_t r = 0; r < kRanks; ++r) {
      Storage element;
      std::memcpy(&element, inputs[r].data() + i * sizeof element, sizeof element);
      value = r == 0 ? Number::load(element) : cuda::combine_two(op, value, Number::load(element));
    }
    const Storage stored = Number::store(op == trAvg ? cuda::divide_by(value, kRanks) : value);
    std::memcpy(result->data() + i * sizeof stored, &stored, sizeof stored);
  }
}

std::vector<std::byte> by_device(const perf::DataType& type, trRedOp_t op, const Inputs& inputs) {
  using namespace cuda;
  std::vector<std::byte> result(kCount * type.bytes);
  switch (type.id) {
#define TR_CASE(code, kernels, name, storage, bits, Number, ...) \
  case code:                                                     \
    combine_elements<Number>(op, inputs, &result);               \
    break;
    TR_DEVICE_TYPES(TR_CASE)
#undef TR_CASE
    default:
      break;
  }
  return result;
}

bool is_right(const char* name, size_t bytes, trDataTypeKind_t kind) {
  const auto fails = [&](const std::string& what) {
    return std::fprintf(stderr, "%s: %s\n", name, what.c_str()), false;
  };
  const perf::DataType* type = perf::find_data_type(name);
  trDataTypeInfo_t info = TR_DATA_TYPE_INFO_INITIALIZER;
  if (type == nullptr || trGetDataTypeInfo(type->id, &info) != trSuccess) return fails("unknown");
  if (info.bytes != bytes || info.kind != kind) return fails("wrong size or kind");
  for (const perf::Operation& op : perf::operations()) {
    if (perf::is_defined(*type, op) != supports(*find_type(type->id), *find_op(op.id)))
      return fails("wrong operations");
    if (!perf::is_defined(*type, op)) continue;
    Inputs inputs(kRanks, std::vector<std::byte>(kCount * type->bytes));
    for (int rank = 0; rank < kRanks; ++rank)
      perf::fill_input(inputs[static_cast<size_t>(rank)].data(), kCount, *type, op.id, rank, kRanks, kSeed);
    for (const auto& [side, result] :
         {std::pair{"host", by_host(*type, op.id, inputs)}, std::pair{"device", by_device(*type, op.id, inputs)}})
      if (const size_t wrong = perf::count_wrong(result.data(), kCount, *type, op.id, kRanks, kSeed); wrong != 0)
        return fails(std::string(op.name) + " by the " + side + ": " + std::to_string(wrong) + " values are wrong");
  }
  return true;
}

}  // namespace

int main() {
  return is_right("int16", 2, trKindInteger) && is_right("f8e3m4", 1, trKindFloat) &&
                 is_right("int32", 4, trKindInteger)
             ? 0
             : 1;
}
