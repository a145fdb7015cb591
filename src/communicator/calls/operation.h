// SPDX-License-Identifier: Apache-2.0
// Operation: one call on a communicator as the API took it, checked, with everything that it refers to.
//
//   a collective with equal parts    input, output, count
//   allgatherv, reduce-scatterv      blocks
//   sends, receives, alltoallv ...   lanes, or eager messages
//   fused allreduces                 segments of input and output
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "algorithms/collective.h"
#include "core/status.h"
#include "executor/layout.h"
#include "executor/rank_status.h"

namespace treering {

// An operation that the user made.
struct Reduction {
  trDataType_t scale_type = trFloat32;  // pre-multiplied sum: the only type it takes
  alignas(16) std::array<std::byte, 16> scale{};
  const void* scale_at = nullptr;       // where it lies instead, read when an operation begins to run; or nullptr
  trReduceFunction function = nullptr;  // user-defined, unless nullptr
  void* context = nullptr;
  bool commutative = true;
};

// What one compressed tensor keeps between calls.
struct Compression {
  trDataType_t wire = trFloat16;
  bool error_feedback = false;
  std::vector<float> residual;
  std::vector<float> adjusted;  // the input with the residual, while a call is under way

  // The part of the tensor that is rounded together.
  size_t block_bytes() const;
};

// Counts and offsets of the blocks of all ranks.
struct Blocks {
  std::vector<size_t> counts, offsets;
  UnequalParts parts;
};

// One direction between this rank and one peer; of several with the same peer and direction the order counts.
struct Transfer {
  uint32_t peer = 0;
  bool send = false;
  View view;
  size_t bytes = 0;
};
struct LaneSet {
  std::vector<Lane> lanes;
  std::vector<std::vector<LaneItem>> items;
};

// Buffers of several segments.
struct BufferSegments {
  std::vector<BufferSegment> input, output;
  std::vector<std::byte> zeros, sink;  // between tensors
  uint64_t calls = 0;                  // hash of the tensors' counts in the order of the calls
  uint32_t members = 0;                // the calls
  size_t elements = 0;                 // of all tensors, without what lies between them
};

struct Operation {
  const char* function = "";  // of the API, for messages
  Collective collective = Collective::kAllReduce;
  Purpose purpose = Purpose::kItself;  // for messages
  bool point_to_point = false;         // not counted: only the ranks concerned call it
  bool pairs = false;                  // transfers between pairs: lanes or eager messages, perhaps none
  bool in_place = false;
  bool is_piece = false;  // of a larger one that all ranks split alike (pieces.h)
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // of each part; for messages where parts differ
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
  uint32_t root = 0;
  std::shared_ptr<const Blocks> blocks;
  std::shared_ptr<LaneSet> lanes;
  std::vector<Transfer> eager_transfers;  // instead of lanes: small transfers, see are_eager()
  std::shared_ptr<BufferSegments> segments;
  std::shared_ptr<const Reduction> reduction;
  std::shared_ptr<Compression> compression;

  // Whether each input is multiplied by a factor, as of trRedOpCreatePreMulSum().
  bool has_factor() const { return reduction != nullptr && (reduction->function == nullptr || scale_at() != nullptr); }
  const void* scale_at() const { return reduction == nullptr ? nullptr : reduction->scale_at; }
  // Elements of the larger buffer, all blocks. NOLINTBEGIN(clang-analyzer-core.NullDereference): it does not know shared_ptr
  size_t elements(uint32_t ranks) const {
    return (info_of(collective).parts == Parts::kOne ? 1 : ranks) * (blocks != nullptr ? blocks->parts.largest : count);
  }  // NOLINTEND(clang-analyzer-core.NullDereference)
};

// Whether the operation makes sense by itself; fills in_place. `rank` calls it.
Status check_operation(Operation* operation, uint32_t rank, uint32_t ranks);

// What all ranks of a collective must agree on, hashed.
uint64_t signature_of(const Operation& operation);

// Whether a buffer has a block of each rank.
inline bool holds_all_ranks(const CollectiveInfo& info, bool output) {
  return info.parts == Parts::kRanks && CollectiveInfo::holds_all(output ? info.output_index : info.input_index);
}

// Blocks in a buffer that a rank uses.
inline uint32_t blocks_of(const CollectiveInfo& info, uint32_t ranks, bool output) {
  return info.parts == Parts::kPairs || holds_all_ranks(info, output) ? ranks : 1;
}

// Elements of the rank's input or output buffer, gaps included; 0 when it has none.
size_t buffer_elements(const Operation& operation, uint32_t rank, uint32_t ranks, bool output);

}  // namespace treering
