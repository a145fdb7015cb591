// SPDX-License-Identifier: Apache-2.0
/**
 * @file async.h
 * Streams, events, callbacks, persistent operations and double buffering. Included by treering.h. Programs that
 * call each function: docs/examples/{streams,double_buffer}.c.
 */
#ifndef TREERING_ASYNC_H_
#define TREERING_ASYNC_H_

#include "treering/collectives.h"
#include "treering/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** @name Streams
 * What an open group (trGroupStart()) holds for a stream is given to it at the group's end. Until then calls that wait
 * for or mark what that stream has are ::trInvalidUsage; trStreamAddCallback(), trEventRecord() and trStreamWaitEvent()
 * fail the group, too, for its order would be another.
 * A process that was forked has none of its parent's streams and events, whatever they held: their handles are an error
 * there (::trInvalidUsage) that says so. It makes its own.
 * @{ */
TR_API trResult_t trStreamCreate(trStream_t* stream);
/** Waits until every operation given to the stream has ended; returns the first failure since the last call. */
TR_API trResult_t trStreamSynchronize(trStream_t stream);
/** ::trSuccess when everything has ended, ::trInProgress when not, else the first failure, told once as there. */
TR_API trResult_t trStreamQuery(trStream_t stream);
/** Waits as trStreamSynchronize() and releases the stream; not while the open group has calls on it. */
TR_API trResult_t trStreamDestroy(trStream_t stream);

/** Called on the library's thread when everything given to the stream before has ended, with the first
 * failure. */
typedef void (*trCallback)(trResult_t result, void* context);
/**
 * The callback must not wait for this library, and must not return in a child that it forks. It runs on the one thread
 * that advances all streams of the process: until it returns nothing else moves in any of them. Hand longer work to a
 * thread of your own.
 */
TR_API trResult_t trStreamAddCallback(trStream_t stream, trCallback callback, void* context);
/** @} */

/** @name Events
 * A mark in a stream: complete when everything given to the stream before trEventRecord() has ended. One that
 * was never recorded is complete. Recording again, on any stream, moves the event to a new mark; what waits for the
 * last one goes on waiting for that, also when the event is destroyed. An event says that the calls have ended, not
 * that they succeeded: trStreamSynchronize() tells that.
 * @{ */
typedef struct trEvent* trEvent_t;
TR_API trResult_t trEventCreate(trEvent_t* event);
TR_API trResult_t trEventRecord(trEvent_t event, trStream_t stream);
/** What is given to `stream` from now on begins after the event's last mark is complete. */
TR_API trResult_t trStreamWaitEvent(trStream_t stream, trEvent_t event);
/** ::trSuccess or ::trInProgress. */
TR_API trResult_t trEventQuery(trEvent_t event);
TR_API trResult_t trEventSynchronize(trEvent_t event);
/**
 * A file descriptor, the event's own, that poll() shows readable while the event is complete; for event
 * loops. It is neither read nor closed by the caller.
 */
TR_API trResult_t trEventGetFd(trEvent_t event, int* fd);
TR_API trResult_t trEventDestroy(trEvent_t event);
/** @} */

/** @name Persistent operations
 * Calls between trPersistentBegin() and trPersistentEnd() of a thread are checked, planned and kept, not run.
 * Starting them allocates nothing and looks nothing up. They run as the calls of one group, on the streams
 * that they name; with NULL streams trPersistentStart() blocks. One start at a time, and none inside an open group
 * (::trInvalidUsage). Events and callbacks cannot be kept.
 * @{ */
typedef struct trPersistent* trPersistent_t;
TR_API trResult_t trPersistentBegin(void);
TR_API trResult_t trPersistentEnd(trPersistent_t* persistent);
TR_API trResult_t trPersistentStart(trPersistent_t persistent);
/**
 * Waits for what was started. A trPersistent_t is a pointer: using it afterwards, or destroying it twice, is undefined.
 * NULL is ignored.
 */
TR_API trResult_t trPersistentDestroy(trPersistent_t persistent);
/** @} */

/** @name Double buffering
 * Training that hides communication behind the next step's computation (as ChainerMN's double-buffering
 * optimizer): the mean of the gradients of step k is computed in the background during step k+1, one step
 * stale.
 * @{ */
typedef struct trDoubleBuffer* trDoubleBuffer_t;

/** Flags of trDoubleBufferCreate(). */
#define TR_DOUBLE_BUFFER_OWNED 1   /**< the object owns two sets of buffers: gradients and means are copied */
#define TR_DOUBLE_BUFFER_RESTART 2 /**< a changed set of tensors starts over, instead of being an error */

/**
 * `compression` may be NULL, and stays the caller's. One with error feedback is refused (::trInvalidArgument): its
 * residual belongs to one buffer, and these have several.
 */
TR_API trResult_t trDoubleBufferCreate(trDoubleBuffer_t* buffer, trComm_t comm, trDataType_t datatype, int flags,
                                       trCompression_t compression);
/**
 * Hands in the gradients of step k, `count` tensors of `counts[i]` elements at `tensors[i]`, starts their
 * mean over the ranks in the background, and gives the mean of step k-1. `*ready`: 1, or 0 when there is none
 * (the first exchange; a restart, which drops the pending mean).
 *
 * Owned: tensors[i] keep their addresses; their contents become the mean of step k-1 (unchanged when *ready
 * is 0). Borrowed: the gradients are reduced in place, without a copy, and stay untouched until the next
 * exchange or flush; tensors[i] are replaced by the addresses given one step before, which hold the mean of
 * step k-1. So a caller alternates between two sets of its own. Nothing is replaced when *ready is 0.
 */
TR_API trResult_t trDoubleBufferExchange(trDoubleBuffer_t buffer, int count, void** tensors, const size_t* counts,
                                         int* ready);
/** Waits for the last mean and gives it as an exchange does, without handing in anything. Afterwards: as new. */
TR_API trResult_t trDoubleBufferFlush(trDoubleBuffer_t buffer, int count, void** tensors, int* ready);
/**
 * Drops a pending mean. A trDoubleBuffer_t is a pointer: using it afterwards, or destroying it twice, is undefined.
 * NULL is ignored.
 */
TR_API trResult_t trDoubleBufferDestroy(trDoubleBuffer_t buffer);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TREERING_ASYNC_H_ */
