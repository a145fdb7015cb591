// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/operation.h"

#include <fmt/format.h>

#include "core/names.h"
#include "core/types.h"
#include "executor/reduce/block_float8.h"

namespace treering {
namespace {

// Elements of the buffer in which parts lie by `index`, and where `part` begins in it.
struct BufferUse {
  size_t elements = 0;
  size_t own_offset = 0;  // of this rank's block (rooted: of the root's)
  bool used = false;
  const Blocks* blocks = nullptr;  // between which are gaps, perhaps
};

BufferUse use_of(const Operation& operation, uint32_t rank, uint32_t ranks, bool output) {
  const CollectiveInfo& info = info_of(operation.collective);
  auto has = output ? info.stores : info.contributes;
  BufferUse use;
  // A rank that has any part has its own.
  uint32_t own = 0;
  if (info.parts == Parts::kRanks)
    own = rank;
  else if (info.parts == Parts::kPairs)
    own = rank * ranks + rank;
  use.used = has({rank, own, ranks, operation.root});
  if (!use.used) return use;
  const bool holds_all = holds_all_ranks(info, output);
  if (operation.blocks == nullptr) {
    use.elements = blocks_of(info, ranks, output) * operation.count;
    if (holds_all) use.own_offset = rank * operation.count;
    return use;
  }
  const Blocks& unequal = *operation.blocks;
  if (!holds_all) {
    use.elements = unequal.counts[rank];
    return use;
  }
  use.own_offset = unequal.offsets[rank];
  use.blocks = &unequal;
  for (uint32_t i = 0; i < ranks; ++i)  // an empty block is nowhere
    if (unequal.counts[i] > 0) use.elements = std::max(use.elements, unequal.offsets[i] + unequal.counts[i]);
  return use;
}

// Whether what a buffer holds, gaps left out, meets `bytes` at `begin`.
bool meets(const BufferUse& use, uintptr_t buffer, size_t size, uintptr_t begin, size_t bytes) {
  const auto overlaps = [&](size_t offset, size_t count) {
    return count > 0 && begin < buffer + (offset + count) * size && buffer + offset * size < begin + bytes;
  };
  if (!overlaps(0, use.elements)) return false;
  if (use.blocks == nullptr) return true;
  for (size_t i = 0; i < use.blocks->counts.size(); ++i)
    if (overlaps(use.blocks->offsets[i], use.blocks->counts[i])) return true;
  return false;
}

template <typename... Args>
Status bad(const Operation& operation, uint32_t rank, fmt::format_string<Args...> format, Args&&... args) {
  return {trInvalidArgument,
          fmt::format("{} on rank {}: {}", operation.function, rank, fmt::format(format, std::forward<Args>(args)...))};
}

Status check_reduction(const Operation& operation, uint32_t rank) {
  if (!info_of(operation.collective).has_data) return {};
  const DataTypeInfo& type = *find_type(operation.type);
  if (operation.reduction == nullptr) {
    const OpInfo* op = find_op(operation.op);
    if (op == nullptr)
      return bad(operation, rank, "op is {}; known are 0 (sum) to 10 (logical xor), and those made by trRedOpCreate...",
                 static_cast<int>(operation.op));
    if (!supports(type, *op)) return bad(operation, rank, "op {} is not defined for datatype {}", op->name, type.name);
  } else if (operation.reduction->function == nullptr && operation.reduction->scale_type != operation.type) {
    return bad(operation, rank, "datatype is {}, but op was made for {}", type.name,
               find_type(operation.reduction->scale_type)->name);
  }
  if (operation.compression != nullptr) {
    if (operation.type != trFloat32)
      return bad(operation, rank, "datatype is {}; only float travels compressed", type.name);
    if (operation.compression->error_feedback && operation.count > operation.compression->residual.size())
      return bad(operation, rank, "count is {}, but the compression keeps the residue of {} elements", operation.count,
                 operation.compression->residual.size());
    if (operation.op != trSum && operation.op != trAvg)
      return bad(operation, rank, "op is {}; only sum and avg travel compressed", name_of(operation.op));
  }
  return {};
}

}  // namespace

uint64_t signature_of(const Operation& operation) {
  // Numbers of operations that users made may differ between ranks.
  auto op = static_cast<uint32_t>(operation.op);
  if (operation.reduction != nullptr) op = operation.reduction->function == nullptr ? 254u : 255u;
  uint32_t part = 0;
  if (operation.is_piece)
    part = 0x40000000u;
  else if (operation.segments != nullptr)
    part = 0x80000000u;
  uint64_t hash = (operation.pairs || operation.blocks != nullptr ? 0 : operation.count) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 29) * 0xBF58476D1CE4E5B9u + (static_cast<uint64_t>(operation.type) << 8) + op +
         (static_cast<uint64_t>(operation.collective) << 16) + (static_cast<uint64_t>(operation.root) << 24) + part;
  if (operation.blocks != nullptr)
    for (size_t count : operation.blocks->counts) hash = (hash ^ hash >> 31) * 0x94D049BB133111EBu + count;
  if (operation.segments != nullptr && !operation.is_piece)
    hash = (hash ^ hash >> 31) * 0x94D049BB133111EBu + operation.segments->calls;
  if (operation.compression != nullptr) hash += uint64_t{operation.compression->wire} << 40;
  return (hash ^ hash >> 32) * 0x94D049BB133111EBu;
}

size_t Compression::block_bytes() const { return (is_block_scaled(wire) ? kFloat8Block : 1) * sizeof(float); }

size_t buffer_elements(const Operation& operation, uint32_t rank, uint32_t ranks, bool output) {
  const BufferUse use = use_of(operation, rank, ranks, output);
  return use.used ? use.elements : 0;
}

Status check_operation(Operation* operation, uint32_t rank, uint32_t ranks) {
  if (operation->pairs) return {};  // checked where they are made
  const CollectiveInfo& info = info_of(operation->collective);
  const DataTypeInfo* type = find_type(operation->type);
  if (type == nullptr) return bad(*operation, rank, "{}", unknown_type(operation->type));
  if (info.reduces) TR_RETURN_IF_ERROR(check_reduction(*operation, rank));
  if (info.rooted && operation->root >= ranks)
    return bad(*operation, rank, "root is {}; give {}", static_cast<int>(operation->root), numbers_of_ranks(ranks));
  if (operation->count > SIZE_MAX / 32 / ranks)
    return bad(*operation, rank, "count is {} x {}: more than any memory holds", operation->count, type->name);
  const BufferUse in = use_of(*operation, rank, ranks, false), out = use_of(*operation, rank, ranks, true);
  if (in.used && in.elements > 0 && operation->input == nullptr) return bad(*operation, rank, "sendbuf is NULL");
  if (out.used && out.elements > 0 && operation->output == nullptr) return bad(*operation, rank, "recvbuf is NULL");
  if (!in.used) operation->input = nullptr;
  if (!out.used) operation->output = nullptr;
  if (in.elements == 0 || out.elements == 0) return {};
  auto input = reinterpret_cast<uintptr_t>(operation->input), output = reinterpret_cast<uintptr_t>(operation->output);
  const size_t input_bytes = in.elements * type->size, output_bytes = out.elements * type->size;
  // At most one of them has gaps.
  if (out.blocks != nullptr ? !meets(out, output, type->size, input, input_bytes)
                            : !meets(in, input, type->size, output, output_bytes))
    return {};
  operation->in_place = input + in.own_offset * type->size == output + out.own_offset * type->size;
  if (operation->in_place) return {};
  return bad(*operation, rank,
             "sendbuf {} ({} bytes) and recvbuf {} ({} bytes) overlap, but not so that the call is in place",
             operation->input, input_bytes, static_cast<const void*>(operation->output), output_bytes);
}

}  // namespace treering
