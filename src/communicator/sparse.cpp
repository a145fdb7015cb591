// SPDX-License-Identifier: Apache-2.0
#include "communicator/sparse.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/names.h"
#include "core/types.h"

namespace treering {
namespace {

constexpr const char* kName = "trSparseAllReduce";

constexpr size_t kMaxBytes = SIZE_MAX / 64;  // more than any memory holds

// What ranks must agree on, and how many rows each has.
struct SparseInfo {
  uint64_t rows;
  uint64_t row_elements;
  uint32_t type;
  uint32_t op;
};

Status gather_blocks(Communicator* communicator, const void* own, const std::vector<SparseInfo>& infos,
                     size_t row_bytes, std::byte* all) {
  auto blocks = std::make_shared<Blocks>();
  size_t at = 0;
  for (const SparseInfo& info : infos) {
    blocks->counts.push_back(info.rows * row_bytes);
    blocks->offsets.push_back(at);
    at += blocks->counts.back();
    blocks->parts.largest = std::max(blocks->parts.largest, blocks->counts.back());
  }
  blocks->parts.counts = blocks->counts.data();
  blocks->parts.offsets = blocks->offsets.data();
  Operation operation;
  operation.function = kName;
  operation.collective = Collective::kAllGather;
  operation.purpose = Purpose::kSparse;
  operation.input = own;
  operation.output = all;
  operation.count = blocks->counts[communicator->rank()];
  operation.type = trUint8;
  operation.blocks = std::move(blocks);
  return communicator->run(operation);
}

// Sums the rows of one index, which `order` lists, into `out`.
void sum_rows(const SparseRows& own, uint32_t ranks, std::span<const size_t> order, const std::byte* values,
              size_t row_bytes, void* out, std::vector<const void*>* sources) {
  sources->clear();
  for (size_t row : order) sources->push_back(values + row * row_bytes);
  ReduceCall call;
  call.type = own.type;
  call.op = own.op;
  call.divisor = own.op == trAvg ? ranks : 1;
  call.sources = sources->data();
  call.source_count = sources->size();
  call.destinations = &out;
  call.destination_count = 1;
  call.count = own.row_elements;
  reduce(call);
}

std::string type_of(const SparseInfo& info) { return name_of(static_cast<trDataType_t>(info.type)); }
std::string op_of(const SparseInfo& info) { return name_of(static_cast<trRedOp_t>(info.op)); }

// All ranks compare the same infos, so that each returns an error where one does.
Status check_infos(uint32_t own_rank, const std::vector<SparseInfo>& infos, const DataTypeInfo& type, size_t* total) {
  const SparseInfo& own = infos[own_rank];
  for (uint32_t rank = 0; rank < infos.size(); ++rank)
    if (infos[rank].row_elements != own.row_elements || infos[rank].type != own.type || infos[rank].op != own.op)
      return {trInvalidUsage, fmt::format("{}: rank {} has rows of {} x {}, op {}; rank {} has rows of {} x {}, op {}",
                                          kName, own_rank, own.row_elements, type_of(own), op_of(own), rank,
                                          infos[rank].row_elements, type_of(infos[rank]), op_of(infos[rank]))};
  if (own.row_elements > kMaxBytes / type.size)
    return {trInvalidArgument,
            fmt::format("{}: row_elements is {} x {}: more than any memory holds", kName, own.row_elements, type.name)};
  const size_t most_rows = kMaxBytes / std::max(own.row_elements * type.size, sizeof(int64_t));
  *total = 0;
  for (uint32_t rank = 0; rank < infos.size(); ++rank) {
    if (infos[rank].rows > most_rows - *total)
      return {trInvalidArgument, fmt::format("{}: rank {} has {} rows of {} x {}: more than any memory holds", kName,
                                             rank, infos[rank].rows, own.row_elements, type.name)};
    *total += infos[rank].rows;
  }
  return {};
}

}  // namespace

Status sparse_allreduce(Communicator* communicator, const SparseRows& own, int64_t* out_indices, void* out_values,
                        size_t capacity, size_t* out_rows) {
  const DataTypeInfo* type = find_type(own.type);
  if (type == nullptr || type->kind == TypeKind::kBool)
    return {trInvalidArgument, fmt::format("{}: datatype is {}; give one that has sums", kName, name_of(own.type))};
  if (own.op != trSum && own.op != trAvg)
    return {trInvalidArgument, fmt::format("{}: op is {}; give trSum or trAvg", kName, name_of(own.op))};
  std::vector<SparseInfo> infos(communicator->ranks());
  const SparseInfo info{own.rows, own.row_elements, static_cast<uint32_t>(own.type), static_cast<uint32_t>(own.op)};
  TR_RETURN_IF_ERROR(
      communicator->allgather_bytes(Purpose::kSparse, &info, sizeof info, reinterpret_cast<std::byte*>(infos.data())));
  size_t total = 0;
  TR_RETURN_IF_ERROR(check_infos(communicator->rank(), infos, *type, &total));
  const size_t row_bytes = own.row_elements * type->size;
  std::vector<int64_t> indices(total);
  std::vector<std::byte> values(total * row_bytes);
  TR_RETURN_IF_ERROR(
      gather_blocks(communicator, own.indices, infos, sizeof(int64_t), reinterpret_cast<std::byte*>(indices.data())));
  TR_RETURN_IF_ERROR(gather_blocks(communicator, own.values, infos, row_bytes, values.data()));
  // Gathered by rank and position: a stable sort keeps that order inside an index.
  std::vector<size_t> order(total);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return indices[a] < indices[b]; });
  size_t distinct = 0;
  for (size_t i = 0; i < total; ++i) distinct += i == 0 || indices[order[i]] != indices[order[i - 1]];
  *out_rows = distinct;
  if (distinct > capacity)
    return {trInvalidArgument, fmt::format("{}: capacity is {}, but the union has {} rows", kName, capacity, distinct)};
  std::vector<const void*> sources;
  auto* out = static_cast<std::byte*>(out_values);
  for (size_t begin = 0, row = 0; begin < total; ++row) {
    size_t end = begin + 1;
    while (end < total && indices[order[end]] == indices[order[begin]]) ++end;
    out_indices[row] = indices[order[begin]];
    sum_rows(own, communicator->ranks(), std::span(order).subspan(begin, end - begin), values.data(), row_bytes,
             out + row * row_bytes, &sources);
    begin = end;
  }
  return {};
}

}  // namespace treering
