// SPDX-License-Identifier: Apache-2.0
// Sparse allreduce: the union of all ranks' rows, rows of the same index summed.
//
//   allgather counts -> allgatherv indices, values -> every rank sorts by (index, rank, position) and sums runs
//
// Every rank sums the same rows in the same order, so all have the same bits. Memory: the rows of all ranks.
#pragma once

#include "communicator/communicator.h"

namespace treering {

struct SparseRows {
  const int64_t* indices = nullptr;
  const void* values = nullptr;
  size_t rows = 0;
  size_t row_elements = 0;
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
};

// Fills at most `capacity` rows; *out_rows is their number, also when there are more than fit.
Status sparse_allreduce(Communicator* communicator, const SparseRows& own, int64_t* out_indices, void* out_values,
                        size_t capacity, size_t* out_rows);

}  // namespace treering
