/**
 * @file treering.h
 * Treering: collective communication for ranks that are processes or threads.
 *
 * A communicator joins `nranks` ranks. Every rank calls the same collectives in the same order on it. Buffers are host
 * memory. Every function returns a ::trResult_t; the message behind the last failure of the calling thread (or of a
 * communicator) is had from trGetLastError(). Every wait has a deadline.
 *
 * @code
 * trUniqueId id;                       // made by one rank, handed to the others by any means (file, socket, fork)
 * trGetUniqueId(&id);
 * trComm_t comm;
 * trCommInitRank(&comm, nranks, id, rank);
 * trAllReduce(send, recv, count, trFloat32, trSum, comm, NULL);
 * trCommDestroy(comm);
 * @endcode
 */
#ifndef TREERING_TREERING_H_
#define TREERING_TREERING_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TR_API __attribute__((visibility("default")))
#else
#define TR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TR_MAJOR 0
#define TR_MINOR 1
#define TR_PATCH 0
/** Version as one number: major * 10000 + minor * 100 + patch. */
#define TR_VERSION_CODE (TR_MAJOR * 10000 + TR_MINOR * 100 + TR_PATCH)

/** Outcome of a call. */
typedef enum {
  trSuccess = 0,
  trSystemError = 2,     /**< a system call failed; the message has its name and errno */
  trInternalError = 3,   /**< a defect of the library */
  trInvalidArgument = 4, /**< an argument is wrong by itself; the message names it and its value */
  trInvalidUsage = 5,    /**< arguments that do not fit one another, the other ranks, or the state of the object */
  trRemoteError = 6,     /**< another rank died, was aborted or failed; the message names it */
  trInProgress = 7,      /**< the operation has not ended yet (trStreamQuery(), trCommGetAsyncError()) */
  trTimeout = 8,         /**< the communicator's deadline passed; the message names the rank that was waited for */
  trResultForceInt = 0x7fffffff /**< no result: makes every int a defined value of the type */
} trResult_t;

/** Type of the elements of a buffer. */
typedef enum {
  trInt8 = 0,
  trUint8 = 1,
  trInt32 = 2,
  trUint32 = 3,
  trInt64 = 4,
  trUint64 = 5,
  trFloat16 = 6, /**< IEEE 754 binary16; accumulated in float32 */
  trFloat32 = 7,
  trFloat64 = 8,
  trBfloat16 = 9, /**< upper half of a float32; accumulated in float32 */
  trDataTypeForceInt = 0x7fffffff /**< no type: makes every int a defined value */
} trDataType_t;

/** How elements are combined. */
typedef enum {
  trSum = 0, /**< integers wrap */
  trProd = 1,
  trMax = 2, /**< NaN propagates */
  trMin = 3, /**< NaN propagates */
  trAvg = 4, /**< sum divided by the number of ranks; integers truncate toward zero */
  trRedOpForceInt = 0x7fffffff /**< no operation: makes every int a defined value */
} trRedOp_t;

#define TR_UNIQUE_ID_BYTES 128
/** Where the ranks of a communicator meet, and the secret that they authenticate with. Opaque; copied by value. */
typedef struct {
  char internal[TR_UNIQUE_ID_BYTES];
} trUniqueId;

/** A communicator: one rank's handle. */
typedef struct trComm* trComm_t;
/** An ordered queue of asynchronous operations, driven by the library's progress thread. */
typedef struct trStream* trStream_t;

#define TR_CONFIG_MAGIC 0x74726367u
#define TR_CONFIG_UNDEF_INT INT_MIN
/**
 * Settings of one communicator. Initialise with ::TR_CONFIG_INITIALIZER and set what differs; a field left undefined
 * takes its value from the environment variable named with it, else the default (docs/options.md). Ranks must agree
 * on every field but `name`; a difference is an error at init that names the rank, the setting and both values.
 */
typedef struct {
  size_t size;            /**< sizeof(trConfig_t) of the caller's header */
  uint32_t magic;         /**< ::TR_CONFIG_MAGIC */
  uint32_t version;       /**< ::TR_VERSION_CODE of the caller's header */
  int timeout_ms;         /**< deadline of every wait, 0 = none (TREERING_TIMEOUT, in seconds; default 300 s) */
  int wide_partials;      /**< 1: partial sums of 16-bit floats travel as float32 (TREERING_WIDE_PARTIALS; 0) */
  int channels;           /**< independent pipelines of a collective (TREERING_CHANNELS; 0 = chosen) */
  int staging_bytes;      /**< shared staging memory of each rank (TREERING_STAGING; 0 = chosen) */
  const char* algorithm;  /**< force an algorithm (TREERING_ALGO; NULL = chosen); trExplain() lists them */
  const char* transports; /**< allowed transports, comma separated, `^` in front excludes (TREERING_TRANSPORTS) */
  const char* name;       /**< name of the communicator in messages */
} trConfig_t;

#define TR_CONFIG_INITIALIZER                                                                                   \
  {                                                                                                             \
    sizeof(trConfig_t), TR_CONFIG_MAGIC, TR_VERSION_CODE, TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT,             \
        TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT, NULL, NULL, NULL                                              \
  }

/** Version of the library that is loaded, as ::TR_VERSION_CODE. */
TR_API trResult_t trGetVersion(int* version);

/** A short constant text for a result code. Never NULL. */
TR_API const char* trGetErrorString(trResult_t result);

/**
 * The message of the last failure: of `comm`, or of the calling thread when `comm` is NULL. Never NULL; empty when
 * nothing failed. Valid until the next call of the same thread (or on the same communicator).
 */
TR_API const char* trGetLastError(trComm_t comm);

/** @name Communicators @{ */

/**
 * Makes the id of a new communicator and starts to listen for its ranks in the background of this process, until
 * every rank has met. Called by one process; the id reaches the others by the caller's own means.
 */
TR_API trResult_t trGetUniqueId(trUniqueId* id);

/**
 * Creates rank `rank` of `nranks` (0 <= rank < nranks). Collective: returns when all ranks have called it, or with an
 * error when they have not within the deadline. Inside a group it returns at once and `*comm` is valid after
 * trGroupEnd().
 */
TR_API trResult_t trCommInitRank(trComm_t* comm, int nranks, trUniqueId id, int rank);

/** trCommInitRank() with settings; `config` may be NULL. */
TR_API trResult_t trCommInitRankConfig(trComm_t* comm, int nranks, trUniqueId id, int rank, const trConfig_t* config);

/** Creates all `nranks` ranks of one communicator in the calling process: `comms` has room for nranks handles. */
TR_API trResult_t trCommInitAll(trComm_t* comms, int nranks);

/** Number of ranks. */
TR_API trResult_t trCommCount(trComm_t comm, int* count);
/** Rank of this handle. */
TR_API trResult_t trCommRank(trComm_t comm, int* rank);

/** Waits until every operation given to the communicator has ended. */
TR_API trResult_t trCommFinalize(trComm_t comm);
/** Releases the communicator. Purely local: waits for no other rank. Operations still under way are aborted. */
TR_API trResult_t trCommDestroy(trComm_t comm);
/** Ends every operation on the communicator, on all ranks, with ::trRemoteError, and releases this rank's handle. */
TR_API trResult_t trCommAbort(trComm_t comm);
/** Stores the communicator's first failure, ::trInProgress while an operation is under way, or ::trSuccess. */
TR_API trResult_t trCommGetAsyncError(trComm_t comm, trResult_t* result);
/** @} */

/** @name Collectives @{ */

/**
 * recvbuf[i] = op over all ranks of sendbuf[i], for `count` elements, on every rank, with bit-identical results on
 * all ranks. sendbuf == recvbuf is in place; other overlap is an error. With a NULL stream the call blocks; with a
 * stream it returns at once and runs in stream order. Ranks must pass the same count, datatype and op.
 *
 * 16-bit floats accumulate in float32. Algorithms "one-shot" and "two-shot" round once; those that forward partial
 * sums ("ring", "halving-doubling", "tree") round once a hop, or once in all with trConfig_t::wide_partials.
 */
TR_API trResult_t trAllReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trRedOp_t op,
                              trComm_t comm, trStream_t stream);

/**
 * Writes to `text` (at most `capacity` bytes, terminated) what an allreduce of `bytes` bytes would do on this
 * communicator and why: every algorithm with its predicted time, and the one chosen. `*needed`, if not NULL, receives
 * the length of the whole text without its end. `text` may be NULL when `capacity` is 0.
 */
TR_API trResult_t trExplain(trComm_t comm, size_t bytes, trDataType_t datatype, char* text, size_t capacity,
                            size_t* needed);

/** What an allreduce of a given size does on a communicator (trGetSelection()). */
typedef struct {
  char algorithm[32];  /**< "ring", "two-shot", ... */
  char protocol[32];   /**< "mailbox", "staged", "direct" */
  int channels;        /**< independent pipelines */
  size_t chunk_bytes;  /**< largest message */
  double predicted_us; /**< by the cost model */
} trSelection_t;

/** The choice that trExplain() puts in words, for tools: sendbuf and recvbuf may be NULL (ordinary memory). */
TR_API trResult_t trGetSelection(trComm_t comm, const void* sendbuf, const void* recvbuf, size_t bytes,
                                 trDataType_t datatype, trSelection_t* selection);
/** @} */

/** @name Groups @{
 * Between trGroupStart() and trGroupEnd() calls are collected and start together at the end, so that one thread can
 * drive many ranks or communicators. Groups nest; the outermost end starts them. trGroupEnd() returns the first
 * failure, and no operation of the group starts when one of its calls was wrong.
 */
TR_API trResult_t trGroupStart(void);
TR_API trResult_t trGroupEnd(void);
/** @} */

/** @name Memory @{ */

/**
 * Allocates `size` bytes (zeroed, page aligned) that the other ranks of this machine map, so that collectives on it
 * copy nothing. Freed with trMemFree() alone.
 */
TR_API trResult_t trMemAlloc(void** ptr, size_t size);
/** Frees memory of trMemAlloc(). No operation may be using it. NULL is ignored. */
TR_API trResult_t trMemFree(void* ptr);

/**
 * Makes ordinary anonymous memory (malloc, new, private anonymous mmap) as fast as that of trMemAlloc(): its whole
 * pages are moved, in place and with their contents, into shareable memory. No other thread may write the buffer
 * during the call. Refused with an error, and without effect, for stacks, file mappings and memory that is not
 * mapped readable and writable. After fork() the pages are shared between parent and child. `*handle` may be NULL
 * (memory that needs no registration, such as that of trMemAlloc()).
 */
TR_API trResult_t trCommRegister(trComm_t comm, void* buffer, size_t size, void** handle);
/** Ends a registration. The memory stays usable; freeing it before or after is safe. A NULL handle is ignored. */
TR_API trResult_t trCommDeregister(trComm_t comm, void* handle);
/** @} */

/** @name Streams @{ */
TR_API trResult_t trStreamCreate(trStream_t* stream);
/** Waits until every operation given to the stream has ended; returns the first failure since the last call. */
TR_API trResult_t trStreamSynchronize(trStream_t stream);
/** ::trSuccess when everything has ended, ::trInProgress when not, else the first failure. */
TR_API trResult_t trStreamQuery(trStream_t stream);
/** Waits as trStreamSynchronize() and releases the stream. */
TR_API trResult_t trStreamDestroy(trStream_t stream);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TREERING_TREERING_H_ */
