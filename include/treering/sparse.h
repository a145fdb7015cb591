// SPDX-License-Identifier: Apache-2.0
/**
 * @file sparse.h
 * Exchange of index boxes of a distributed array, and allreduce of sparse rows. Included by treering.h.
 * A program that calls each function: docs/examples/sparse.c.
 */
#ifndef TREERING_SPARSE_H_
#define TREERING_SPARSE_H_

#include "treering/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** @name Sparse exchange */ /** @{ */

#define TR_MAX_DIMENSIONS 5
/** Indices lo[d] <= i[d] < hi[d] of a global array. */
typedef struct {
  int64_t lo[TR_MAX_DIMENSIONS];
  int64_t hi[TR_MAX_DIMENSIONS];
} trBox_t;

typedef struct trExchange* trExchange_t;
/**
 * Plans the movement of one global array of 1 to 5 dimensions: this rank holds the boxes `held` and needs the
 * boxes `needed`. Every needed element must be held by some rank, else every rank gets an error that names
 * it; of several holders the rank itself comes first, then the lowest. Collective over `comm`; blocks.
 * Executed any number of times.
 */
TR_API trResult_t trExchangeCreate(trExchange_t* exchange, int dimensions, int held_count, const trBox_t* held,
                                   int needed_count, const trBox_t* needed, trDataType_t datatype, trComm_t comm);
/**
 * Moves the data: held_data[i] and needed_data[j] are dense arrays of their boxes' shapes, the last dimension
 * contiguous. A needed array overlaps no other array.
 */
TR_API trResult_t trExchangeStart(trExchange_t exchange, const void* const* held_data, void* const* needed_data,
                                  trStream_t stream);
/** Waits for what was started. A pointer: using it afterwards, or destroying it twice, is undefined. NULL is ignored. */
TR_API trResult_t trExchangeDestroy(trExchange_t exchange);
/** @} */

/** @name Sparse allreduce */ /** @{ */

/**
 * The union of the ranks' rows with summed values, as embedding gradients need it. Row i of this rank is
 * indices[i] with `row_elements` elements at values + i * row_elements; an index may occur several times.
 * Every rank gets the same rows, bit for bit, in ascending order of their indices: `*out_rows` of them, at
 * most `capacity` (an error that names the number when there are more; nothing is written then). Blocks.
 * out_indices and out_values must not overlap the inputs. op: trSum or trAvg (over the number of ranks).
 */
TR_API trResult_t trSparseAllReduce(const int64_t* indices, const void* values, size_t rows, size_t row_elements,
                                    trDataType_t datatype, trRedOp_t op, int64_t* out_indices, void* out_values,
                                    size_t capacity, size_t* out_rows, trComm_t comm);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TREERING_SPARSE_H_ */
