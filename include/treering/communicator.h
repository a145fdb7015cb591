// SPDX-License-Identifier: Apache-2.0
/**
 * @file communicator.h
 * Communicators, memory, and what a communicator says about itself. Included by treering.h.
 * Programs that call each function: docs/examples/{allreduce,communicators,grow}.c.
 */
#ifndef TREERING_COMMUNICATOR_H_
#define TREERING_COMMUNICATOR_H_

#include "treering/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Version of the library that is loaded, as ::TR_VERSION_CODE. */
TR_API trResult_t trGetVersion(int* version);

/** A short constant text for a result code. Never NULL. */
TR_API const char* trGetErrorString(trResult_t result);

/**
 * The message of the last failure: of `comm`, or of the calling thread when `comm` is NULL. Never NULL; empty
 * when nothing failed. Valid until the next call of the same thread (or on the same communicator).
 */
TR_API const char* trGetLastError(trComm_t comm);

/**
 * Stores what `datatype` is in `*info`, which is initialised with ::TR_DATA_TYPE_INFO_INITIALIZER. Types are numbered
 * from 0 without gaps, so that a program finds all that this library knows by asking until ::trInvalidArgument.
 */
TR_API trResult_t trGetDataTypeInfo(trDataType_t datatype, trDataTypeInfo_t* info);

/** @name Communicators */ /** @{ */

/**
 * Makes the id of a new communicator and starts to listen for its ranks in the background of this process,
 * until every rank has met. Called by one process; the id reaches the others by the caller's own means.
 */
TR_API trResult_t trGetUniqueId(trUniqueId* id);

/**
 * Creates rank `rank` of `nranks` (0 <= rank < nranks). Collective: returns when all ranks have called it, or
 * with an error when they have not within the deadline. Inside a group it returns at once and `*comm` is
 * valid after trGroupEnd().
 */
TR_API trResult_t trCommInitRank(trComm_t* comm, int nranks, trUniqueId id, int rank);

/** trCommInitRank() with settings; `config` may be NULL. */
TR_API trResult_t trCommInitRankConfig(trComm_t* comm, int nranks, trUniqueId id, int rank, const trConfig_t* config);

/**
 * trCommInitRankConfig() for a process that a launcher has started: rank, number of ranks and id come from mpirun of
 * Open MPI or MPICH, srun (--mpi=pmi2 or --mpi=pmix), torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or from
 * TREERING_RANK, TREERING_RANKS and TREERING_ID. trCommRank() and trCommCount() tell what they are. One rank a process;
 * once in a process where PMI-1 carries the id (MPICH, srun --mpi=pmi2). Not for a program that calls MPI_Init, too:
 * MPI and this function would use the launcher's connection by turns. There rank 0 broadcasts a unique id with
 * MPI_Bcast. trInvalidUsage when nothing of all this is found: the message names what was looked for.
 */
TR_API trResult_t trCommInitFromEnvironment(trComm_t* comm, const trConfig_t* config);

/** Creates all `nranks` ranks of one communicator in the calling process: `comms` has room for nranks
 * handles. */
TR_API trResult_t trCommInitAll(trComm_t* comms, int nranks);

/** Number of ranks. */
TR_API trResult_t trCommCount(trComm_t comm, int* count);
/** Rank of this handle. */
TR_API trResult_t trCommRank(trComm_t comm, int* rank);

/** Waits until every operation given to the communicator has ended; ::trInvalidUsage while an open group holds some. */
TR_API trResult_t trCommFinalize(trComm_t comm);
/**
 * Releases the communicator. Waits for no call of another rank. Operations still under way are aborted. Over TCP it
 * waits some 200 ms at most until the kernels of the other hosts have acknowledged what this rank sent last. Where one
 * does not answer that is sent again by another connection, for 3.5 s at most. If that fails, too, it may be lost: where
 * that matters, call trBarrier() before. A process that ends after a failure, or while its last messages are on their
 * way, may wait up to 3 s in exit().
 */
TR_API trResult_t trCommDestroy(trComm_t comm);
/**
 * Ends every operation on the communicator, on all ranks, with ::trRemoteError, and releases this rank's handle. Where
 * nothing of this rank is under way, it has not failed and no GPU waits for it in a collective, it is trCommDestroy().
 */
TR_API trResult_t trCommAbort(trComm_t comm);
/**
 * Ends every operation on the communicator, on all ranks, with ::trRemoteError, and keeps this rank's handle: it still
 * takes trCommShrink(), trCommSplit() (when all ranks have revoked it), questions and trCommDestroy(). May be called
 * while another thread is in a call on the communicator.
 */
TR_API trResult_t trCommRevoke(trComm_t comm);
/**
 * Stores the communicator's first failure, ::trInProgress while an operation is under way, or ::trSuccess. May be
 * called while another thread is in a call on the communicator.
 */
TR_API trResult_t trCommGetAsyncError(trComm_t comm, trResult_t* result);
/** @} */

/** @name Subsets */ /** @{ */

/** A rank that passes this colour to trCommSplit() gets no communicator (`*newcomm` is NULL). */
#define TR_SPLIT_NOCOLOR (-1)
/**
 * Splits `comm`: ranks that pass the same `color` (0 or more) form a new communicator, ranked by `key` and,
 * where keys are equal, by their rank in `comm`. Collective over `comm`; blocks. `config` may be NULL: the
 * settings of `comm`. A communicator of one rank uses no memory, thread or descriptor. Inside a group it
 * returns at once and `*newcomm` is valid after trGroupEnd().
 */
TR_API trResult_t trCommSplit(trComm_t comm, int color, int key, trComm_t* newcomm, const trConfig_t* config);
/** A new communicator of the same ranks: trCommSplit() with one colour and the ranks as keys. */
TR_API trResult_t trCommDup(trComm_t comm, trComm_t* newcomm);

/**
 * The ranks of `comm` that this rank knows to be lost, in ascending order: their processes have ended, are stopped or do
 * not answer, or they have destroyed the communicator. `ranks` has room for one number less than `comm` has ranks;
 * `*count` is how many there are. Local; any thread, also while a call is under way and after `comm` has failed. Another
 * rank may know of fewer or more for a moment: trCommShrink() tells where sets differ.
 */
TR_API trResult_t trCommGetLost(trComm_t comm, int* ranks, int* count);

/** Flag of trCommShrink(): ends what is under way on `comm` first, as trCommRevoke(). */
#define TR_SHRINK_ABORT 1
/**
 * A new communicator of the ranks that are not among the `excluded` ones, in their order. Called by those ranks alone,
 * with the same set; blocks. Excluded ranks may be dead and `comm` may have failed: neither is used. `config` may be
 * NULL: the settings of `comm`. Inside a group it returns at once and `*newcomm` is valid after trGroupEnd().
 *
 * ::trInvalidUsage where ranks that call give other sets, on each of them, with a message that says which rank excludes
 * whom; they may call it again. Some hear it up to 2 s later than others.
 * The others do not wait for the call of a rank that they exclude: one that calls after they have agreed gets that
 * error alone, and theirs succeed. So if two halves exclude one another, one of them may succeed. Both may, if the
 * network between them is cut for longer than it takes until a process counts as silent (3 to 8 s, or half of the
 * deadline).
 */
TR_API trResult_t trCommShrink(trComm_t comm, const int* excluded, int excluded_count, trComm_t* newcomm,
                               const trConfig_t* config, int flags);

/**
 * A new communicator of `nranks` ranks: those of `comm`, which keep their ranks, and new ones that follow them. Called
 * by all ranks of `comm`, with the same `nranks`; blocks. One of them has made an id with trGetUniqueId(), hands it to
 * the new ranks and gives it here; the others give NULL. The new ranks call trCommInitRank() or trCommInitRankConfig()
 * with the id, `nranks` and their rank, which is the number of ranks of `comm` or more. An id is good for one call, a
 * failed one too.
 *
 * `comm` stays as it is, but fails as in any collective where one of its ranks does not call or dies. It must not have
 * failed before: shrink it first (trCommShrink()), so that new ranks replace dead ones. ::trInvalidUsage on all ranks,
 * with a message that names ranks and values, when their `nranks` differ, or when not exactly one gives an id; an error
 * within the deadline where new ranks do not come. A rank whose own arguments are bad (`nranks` below 1 or too large, a
 * setting in `config`) gets its error at once and takes no part; the other ranks then end at their deadline. `config`
 * may be NULL: the settings of `comm`. Inside a group it returns at once and `*newcomm` is valid after trGroupEnd().
 */
TR_API trResult_t trCommGrow(trComm_t comm, int nranks, const trUniqueId* id, trComm_t* newcomm,
                             const trConfig_t* config);
/** @} */

/** @name Explanations */ /** @{ */

/**
 * Writes to `text` (at most `capacity` bytes, terminated) what a collective of `bytes` bytes would do on this
 * communicator and why: every algorithm with its predicted time, and the one chosen. `*needed`, if not NULL,
 * receives the length of the whole text without its end. `text` may be NULL when `capacity` is 0. `bytes` are
 * those of the larger buffer: of an allgather of 1 MiB by each of 4 ranks they are 4 MiB.
 */
TR_API trResult_t trExplain(trComm_t comm, trCollective_t collective, size_t bytes, trDataType_t datatype, char* text,
                            size_t capacity, size_t* needed);

/** What a collective of a given size does on a communicator (trGetSelection()). */
typedef struct {
  char algorithm[32];  /**< "ring", "two-shot", ... */
  char protocol[32];   /**< "mailbox", "staged", "direct"; of kernels "ll", "ll128", "simple" */
  int channels;        /**< independent pipelines; of kernels blocks */
  size_t chunk_bytes;  /**< largest message */
  double predicted_us; /**< by the cost model */
  /** By what the ranks of the communicator reach one another: "in-process", "shm", "cma", "tcp", of several all, as in
   * "shm+tcp"; of kernels "gpu"; "none" where there is one rank. */
  char transport[32];
} trSelection_t;

/**
 * The choice that trExplain() puts in words, for tools: sendbuf and recvbuf may be NULL (ordinary memory). Where GPUs
 * run the collective by kernels, and sendbuf is not memory of the host, it is theirs.
 */
TR_API trResult_t trGetSelection(trComm_t comm, trCollective_t collective, const void* sendbuf, const void* recvbuf,
                                 size_t bytes, trDataType_t datatype, trSelection_t* selection);

/**
 * The time, by the cost model, of a transfer of `bytes` from one rank to another (trSend(), trRecv()), by kernels where
 * the GPUs of the communicator exchange by them.
 */
TR_API trResult_t trPredictTransfer(trComm_t comm, size_t bytes, double* microseconds);
/** @} */

/** @name Shapes */ /** @{ */

/** Stores the ranks in the order of the ring, nranks of them: each sends to the next, the last to the first. */
TR_API trResult_t trCommGetRing(trComm_t comm, int* ring);
/**
 * This rank's place in tree `tree` (0 or 1) of the double binary tree that allreduce uses: its parent and its two
 * children, -1 where it has none.
 */
TR_API trResult_t trCommGetTree(trComm_t comm, int tree, int* parent, int* children);
/** @} */

/** @name Memory */ /** @{ */

/**
 * Allocates `size` bytes (zeroed, page aligned) that the other ranks of this machine map, so that collectives
 * on it copy nothing. Freed with trMemFree() alone.
 */
TR_API trResult_t trMemAlloc(void** ptr, size_t size);
/**
 * Frees memory of trMemAlloc(). No operation may be using it. NULL is ignored. In a process that was forked after the
 * allocation it unmaps the memory there alone: it stays that of the parent and of the other ranks.
 */
TR_API trResult_t trMemFree(void* ptr);

/**
 * Makes ordinary anonymous memory (malloc, new, private anonymous mmap) as fast as that of trMemAlloc(): its
 * whole pages are moved, in place and with their contents, into shareable memory. No other thread may write
 * the buffer during the call. Refused with an error, and without effect, for stacks, file mappings and memory
 * that is not mapped readable and writable, or that CUDA has pinned. After fork() the pages are shared between parent
 * and child.
 *
 * `*handle` becomes NULL where nothing is to be moved: memory that lies in a registration or in memory of trMemAlloc()
 * already, and a range of any memory that holds no whole page (4096 bytes, at a multiple of 4096), which is accepted
 * without effect and not looked at. A range that reaches beyond an earlier registration that it meets ends that one,
 * whose handle trCommDeregister() still takes, so no operation may be using its memory. An address and a size beyond any memory are an error.
 */
TR_API trResult_t trCommRegister(trComm_t comm, void* buffer, size_t size, void** handle);
/** Ends a registration. No operation may be using the memory. It stays usable; freeing it before or after is safe. A
 * NULL handle is ignored. */
TR_API trResult_t trCommDeregister(trComm_t comm, void* handle);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TREERING_COMMUNICATOR_H_ */
