// SPDX-License-Identifier: Apache-2.0
/**
 * @file collectives.h
 * Collectives, point-to-point operations, groups and operations made by the user. Included by treering.h.
 *
 * Common to all: every rank of the communicator makes the same calls in the same order. Calls that differ are an error
 * on every rank that hears of it. A rank that waits for no other one in a call, as a root that only sends, has success from
 * that call, and the error from its next call that waits, such as a barrier. With a NULL stream a
 * call blocks; with a stream it returns at once and runs in stream order, and its buffers stay untouched
 * until it has ended. Counts are numbers of elements; 0 is allowed everywhere. Buffers may be NULL where
 * their count is 0 or the rank does not take part in them. What a data type and an operation do not support
 * together is refused before anything moves. Where a rank's block of the larger buffer is also its own
 * smaller buffer, the call is in place and copies nothing; other overlap is an error.
 *
 * Programs that call each function:
 * docs/examples/{collectives,variable_counts,point_to_point,operations,compression}.c.
 */
#ifndef TREERING_COLLECTIVES_H_
#define TREERING_COLLECTIVES_H_

#include "treering/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** @name Collectives */ /** @{ */

/**
 * recvbuf[i] = op over all ranks of sendbuf[i], for `count` elements, on every rank, with bit-identical
 * results on all ranks. sendbuf == recvbuf is in place; other overlap is an error. With a NULL stream the
 * call blocks; with a stream it returns at once and runs in stream order. Ranks must pass the same count,
 * datatype and op.
 *
 * 16-bit floats accumulate in float32. Algorithms "one-shot" and "two-shot" round once; those that forward
 * partial sums ("ring", "halving-doubling", "recursive-doubling", "tree", and those between hosts) round once
 * a hop, or once in all with trConfig_t::wide_partials.
 */
TR_API trResult_t trAllReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trRedOp_t op,
                              trComm_t comm, trStream_t stream);

/** As trAllReduce(), with the result on rank `root` alone; `recvbuf` is not used elsewhere. */
TR_API trResult_t trReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trRedOp_t op,
                           int root, trComm_t comm, trStream_t stream);

/**
 * recvbuf on every rank = sendbuf of rank `root`, `count` elements. `sendbuf` is used on the root alone,
 * where it may be equal to recvbuf.
 */
TR_API trResult_t trBroadcast(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, int root,
                              trComm_t comm, trStream_t stream);

/**
 * recvbuf on every rank = the sendbufs of all ranks, in rank order: nranks x `sendcount` elements. In place
 * when sendbuf == recvbuf + rank * sendcount.
 */
TR_API trResult_t trAllGather(const void* sendbuf, void* recvbuf, size_t sendcount, trDataType_t datatype,
                              trComm_t comm, trStream_t stream);

/**
 * recvbuf on rank r = op over all ranks of block r of their sendbufs: sendbuf has nranks x `recvcount`
 * elements. In place when recvbuf == sendbuf + rank * recvcount.
 */
TR_API trResult_t trReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, trDataType_t datatype,
                                  trRedOp_t op, trComm_t comm, trStream_t stream);

/**
 * Block s of recvbuf on rank d = block d of sendbuf on rank s; blocks of `count` elements, nranks in each
 * buffer. In place when sendbuf == recvbuf.
 */
TR_API trResult_t trAllToAll(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trComm_t comm,
                             trStream_t stream);

/**
 * recvbuf on rank `root` = the sendbufs of all ranks, in rank order; not used elsewhere. In place on the root
 * when sendbuf == recvbuf + root * count.
 */
TR_API trResult_t trGather(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, int root,
                           trComm_t comm, trStream_t stream);

/**
 * recvbuf on rank r = block r of sendbuf on rank `root`; sendbuf is not used elsewhere. In place on the root
 * when recvbuf == sendbuf + root * count.
 */
TR_API trResult_t trScatter(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, int root,
                            trComm_t comm, trStream_t stream);

/** Ends on no rank before every rank has begun it. */
TR_API trResult_t trBarrier(trComm_t comm, trStream_t stream);
/** @} */

/** @name Variable counts
 * As above with a count for each rank. `displs[r]` is where rank r's block begins, in elements; NULL: the
 * blocks follow one another. Arrays have nranks entries and are copied by the call; displacements may differ
 * between ranks. In place as above, by the blocks' addresses.
 * @{ */

/** trAllGather(); sendcount == recvcounts[rank], and recvcounts is the same on all ranks. */
TR_API trResult_t trAllGatherV(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                               const size_t* displs, trDataType_t datatype, trComm_t comm, trStream_t stream);
/** trReduceScatter(); recvcounts is the same on all ranks; sendbuf has the blocks one after another. */
TR_API trResult_t trReduceScatterV(const void* sendbuf, void* recvbuf, const size_t* recvcounts, trDataType_t datatype,
                                   trRedOp_t op, trComm_t comm, trStream_t stream);
/**
 * trAllToAll(); sendcounts[d] on rank s == recvcounts[s] on rank d. Not in place; the blocks of both buffers may lie in
 * one array, each apart from the others.
 */
TR_API trResult_t trAllToAllV(const void* sendbuf, const size_t* sendcounts, const size_t* sdispls, void* recvbuf,
                              const size_t* recvcounts, const size_t* rdispls, trDataType_t datatype, trComm_t comm,
                              trStream_t stream);
/** trGather(); recvcounts and displs are used on the root alone; recvcounts[r] there == sendcount on rank r. */
TR_API trResult_t trGatherV(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                            const size_t* displs, trDataType_t datatype, int root, trComm_t comm, trStream_t stream);
/** trScatter(); sendcounts and displs are used on the root alone; sendcounts[r] there == recvcount on rank r. */
TR_API trResult_t trScatterV(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                             size_t recvcount, trDataType_t datatype, int root, trComm_t comm, trStream_t stream);
/** @} */

/** @name Point to point
 * The k-th send of rank s to rank d on a communicator meets the k-th receive on d from s; a difference in
 * bytes is an error on both; a sender whose send has ended already gets it from a later call. A send may end before its
 * receive begins, and must not be relied on to. A rank may send to itself inside a group or with trSendRecv().
 * @{ */
TR_API trResult_t trSend(const void* sendbuf, size_t count, trDataType_t datatype, int peer, trComm_t comm,
                         trStream_t stream);
TR_API trResult_t trRecv(void* recvbuf, size_t count, trDataType_t datatype, int peer, trComm_t comm,
                         trStream_t stream);
/** A send to `dest` and a receive from `source` at once: neither waits for the other. The buffers must not overlap. */
TR_API trResult_t trSendRecv(const void* sendbuf, size_t sendcount, int dest, void* recvbuf, size_t recvcount,
                             int source, trDataType_t datatype, trComm_t comm, trStream_t stream);
/** @} */

/** @name Groups
 * Between trGroupStart() and trGroupEnd() calls are collected and start together at the end, so that one
 * thread can drive many ranks or communicators. Groups nest; the outermost end starts them. trGroupEnd()
 * returns the first failure, and no operation of the group starts when one of its calls was wrong.
 *
 * Allreduces of a group with the same communicator, stream, data type and operation are fused into one, up to
 * trConfig_t::fusion_bytes each; every rank must then make the same calls in the group. Those with a function of
 * the user or with error feedback stay single, and so do all that follow one another in a group when one writes
 * what another one uses (on all ranks, or on none). Sends and receives of a communicator in a group run at once,
 * in any order, without deadlock; of those on several streams each stream
 * waits for all. NULL and streams mixed run one after another, as do several communicators, or several ranks of one, on
 * the same stream: all ranks then name them in the same order, and a rank has a stream of its own.
 *
 * On one communicator and stream the collectives run first, in the order of their calls, and then the sends and
 * receives, whatever their places in the group: a rank that issues the same calls without a group gives the collectives
 * first, too. Where a group names several streams of one communicator, or none (NULL), the calls of the stream that it
 * names first run first.
 * @{ */
TR_API trResult_t trGroupStart(void);
TR_API trResult_t trGroupEnd(void);
/** @} */

/** @name Operations made by the user
 * An operation is of the communicator that it was made on; elsewhere, and after its end, it is an error.
 * @{ */

/**
 * `*op`: the sum over all ranks of scalar x sendbuf. `scalar` points to one element of `datatype` on the
 * host, read by the call (trRedOpCreatePreMulSumDevice(): when operations run); each rank may give its own. Usable with
 * this datatype alone: floats, complex numbers and integers.
 */
TR_API trResult_t trRedOpCreatePreMulSum(trRedOp_t* op, const void* scalar, trDataType_t datatype, trComm_t comm);

/** inout[i] = in[i] op inout[i] for `count` elements, where `in` is of lower ranks than `inout`. */
typedef void (*trReduceFunction)(const void* in, void* inout, size_t count, trDataType_t datatype, void* context);
/**
 * `*op`: `function`, on any data type. It must be associative. With `commutative` 0 operands are combined in
 * the order of the ranks. It is called on the thread that drives the call, with blocks of elements that begin at
 * multiples of 64 bytes of the buffer, and must be the same on all ranks. With trReduceScatter() and trReduceScatterV()
 * these are multiples from the beginning of a rank's block, which is itself where the counts put it: blocks of elements
 * that belong together need counts that keep them so. It must not call this library.
 */
TR_API trResult_t trRedOpCreateUser(trRedOp_t* op, trReduceFunction function, void* context, int commutative,
                                    trComm_t comm);
/** Releases an operation that was made. Calls that were given with it keep it until they have ended. */
TR_API trResult_t trRedOpDestroy(trRedOp_t op, trComm_t comm);
/** @} */

/** @name Compression on the wire */ /** @{ */

/** How float32 travels. */
typedef struct trCompression* trCompression_t;
/**
 * `wire`: trFloat16, trBfloat16, trFloat8e4m3 or trFloat8e5m2 (the last two with a float32 scale for every
 * 128 elements). With `error_feedback` the object keeps what rounding took from this rank's input and adds it
 * to the next call's; such an object is for one tensor of up to `count` elements, in one call at a time. Sums
 * and averages of float32 alone. Operands are rounded once when they leave a rank and the result once:
 * docs/compression.md has the bound. All ranks get the same bits.
 */
TR_API trResult_t trCompressionCreate(trCompression_t* compression, trDataType_t wire, int error_feedback,
                                      size_t count);
/** A pointer: using it afterwards, or destroying it twice, is undefined. NULL is ignored. */
TR_API trResult_t trCompressionDestroy(trCompression_t compression);
/** trAllReduce() of float32 that travels compressed. Ranks must agree on the wire type. */
TR_API trResult_t trAllReduceCompressed(const void* sendbuf, void* recvbuf, size_t count, trRedOp_t op,
                                        trCompression_t compression, trComm_t comm, trStream_t stream);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TREERING_COLLECTIVES_H_ */
