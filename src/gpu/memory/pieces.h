// SPDX-License-Identifier: Apache-2.0
// Pieces: large collectives of a communicator with GPUs run as several smaller ones, so that a rank that stages its
// buffers in pinned memory needs little of it and copies while it exchanges (staged_path.h). All ranks split alike,
// with or without a GPU: what follows from the operation and the settings alone.
//
//   piece 1 of an allgather by 3 ranks:   input  | . . # # . |           output  | . . # # . | . . # # . | . . # # . |
//
// A piece is the same collective on elements [first, first + count) of every block. Whole stay: what a kernel does,
// blocks of different sizes, sends and receives (a round that waits for another could wait for itself), and
// compression.
#pragma once

#include "communicator/communicator.h"

namespace treering {

struct PiecePlan {
  size_t pieces = 1;  // 1: the operation stays whole
  size_t count = 0;   // elements of each block in every piece but the last, which has the rest
};
PiecePlan plan_pieces(const Communicator& communicator, const Operation& operation);
// Bytes of either buffer of a piece at most.
size_t most_piece_bytes(const Communicator& communicator);
// The operation of piece `index`; its buffers are those of the whole.
Operation piece_of(const Operation& operation, const PiecePlan& plan, size_t index);
// Blocks of `operation.count` elements that the rank's buffer has; 0: it has no such buffer.
size_t buffer_blocks(const Operation& operation, uint32_t rank, uint32_t ranks, bool output);

// For buffers of the host, which are used where they lie: calls `each` with what to run instead of `operation`.
template <class Each>
Status for_each_piece(const Communicator& communicator, const Operation& operation, const Each& each);

Operation host_piece(const Communicator& communicator, const Operation& operation, const PiecePlan& plan, size_t index);

template <class Each>
Status for_each_piece(const Communicator& communicator, const Operation& operation, const Each& each) {
  const PiecePlan plan = plan_pieces(communicator, operation);
  if (plan.pieces == 1) return each(operation);
  for (size_t index = 0; index < plan.pieces; ++index)
    TR_RETURN_IF_ERROR(each(host_piece(communicator, operation, plan, index)));
  return {};
}

}  // namespace treering
