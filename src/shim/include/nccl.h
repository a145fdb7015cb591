// SPDX-License-Identifier: Apache-2.0
/**
 * @file nccl.h
 * The interface of NCCL 2.28.9 as Treering's libnccl.so.2 offers it: the same names, values, layouts and calling
 * conventions, so that programs compiled against either header run with either library. What differs in behaviour is in
 * docs/nccl-shim.md. The host functions that 2.29 and 2.30 have added are there as well.
 *
 * Needs no CUDA header. Buffers are host memory, and a stream is NULL, 1 (legacy) or 2 (per thread): calls block until
 * they have ended.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* As cuda_runtime.h declares it: the two may be included together, in any order. */
struct CUstream_st;
typedef struct CUstream_st* cudaStream_t;

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""
/** Versions up to 2.8 have four digits, later ones five. */
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

#if defined(__GNUC__)
#define NCCL_SHIM_API __attribute__((visibility("default")))
#else
#define NCCL_SHIM_API
#endif

/* In the library itself every int that a caller may pass is a defined value of the enumerations. */
#if defined(__cplusplus) && defined(NCCL_SHIM_IMPLEMENTATION)
#define NCCL_SHIM_INT : int
#else
#define NCCL_SHIM_INT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** One rank's handle of a communicator. */
typedef struct ncclComm* ncclComm_t;
/** A registered buffer of all ranks. */
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
/** Where the ranks of a communicator meet. Opaque; passed by value. */
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/** Outcome of a call. ncclGetLastError() has the reason. */
typedef enum NCCL_SHIM_INT {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6, /**< another rank died, was aborted or failed, or did not answer in time */
  ncclInProgress = 7,  /**< of a communicator with blocking = 0: see ncclCommGetAsyncError() */
  ncclNumResults = 8
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_SPLIT_NOCOLOR -1

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02 /**< of one-sided calls; no effect */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /**< end what the parent has under way first */

#define NCCL_REVOKE_DEFAULT 0x00

#define NCCL_SUSPEND_MEM 0x01

/**
 * Settings of a communicator. Fields that this library has no use for are checked and otherwise ignored.
 * Initialise with NCCL_CONFIG_INITIALIZER.
 */
typedef struct ncclConfig_v22800 {
  size_t size;             /**< sizeof(ncclConfig_t) of the caller's header */
  unsigned int magic;      /**< 0xcafebeef */
  unsigned int version;    /**< NCCL_VERSION_CODE of the caller's header */
  int blocking;            /**< 0: calls may return ncclInProgress and go on in the background */
  int cgaClusterSize;      /**< 0 to 8; no effect */
  int minCTAs;             /**< least number of channels */
  int maxCTAs;             /**< largest number of channels */
  const char* netName;     /**< no effect */
  int splitShare;          /**< 0 or 1; no effect */
  int trafficClass;        /**< no effect */
  const char* commName;    /**< in messages */
  int collnetEnable;       /**< 0 or 1; no effect */
  int CTAPolicy;           /**< NCCL_CTA_POLICY_*; no effect */
  int shrinkShare;         /**< 0 or 1; no effect */
  int nvlsCTAs;            /**< no effect */
  int nChannelsPerNetPeer; /**< no effect */
  int nvlinkCentricSched;  /**< 0 or 1; no effect */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                \
  {                                                                                                            \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,            \
        NCCL_CONFIG_UNDEF_INT                                                                                  \
  }

/** What ncclGroupSimulateEnd() tells. Initialise with NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic; /**< 0x74685283 */
  unsigned int version;
  float estimatedTime; /**< microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_UNDEF_FLOAT }

/** Type of the elements of a buffer. */
typedef enum NCCL_SHIM_INT {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/** How elements are combined. Values from ncclNumOps on are made by ncclRedOpCreatePreMulSum(). */
typedef enum NCCL_SHIM_INT { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum NCCL_SHIM_INT {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4, /**< sum divided by the number of ranks */
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

/** What ncclCommMemStats() is asked for. */
typedef enum NCCL_SHIM_INT {
  ncclStatGpuMemSuspend = 0,   /**< bytes that a suspension would release: 0 */
  ncclStatGpuMemSuspended = 1, /**< 1 between ncclCommSuspend() and ncclCommResume() */
  ncclStatGpuMemPersist = 2,   /**< bytes that stay: 0 without a GPU, else not known */
  ncclStatGpuMemTotal = 3      /**< bytes in all: 0 without a GPU, else not known */
} ncclCommMemStat_t;

/** Signals that ncclWaitSignal() waits for. */
typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

/** When the scalar of an operation is read. */
typedef enum NCCL_SHIM_INT {
  ncclScalarDevice = 0,       /**< while a collective with the operation runs; it stays valid until then */
  ncclScalarHostImmediate = 1 /**< before the creating call returns */
} ncclScalarResidence_t;

/*
 * Each function exists twice: `ncclX`, a weak symbol that a profiler may replace, and `pncclX`, the function itself.
 */
#define NCCL_SHIM_FUNCTION(type, name, parameters) \
  NCCL_SHIM_API type nccl##name parameters;        \
  NCCL_SHIM_API type pnccl##name parameters

/** @name Library @{ */
/** NCCL_VERSION_CODE of the library. */
NCCL_SHIM_FUNCTION(ncclResult_t, GetVersion, (int* version));
/** A short constant text for a result. Never NULL. */
NCCL_SHIM_FUNCTION(const char*, GetErrorString, (ncclResult_t result));
/** The message of the last failure: of `comm`, or of the process when `comm` is NULL. Never NULL. Valid until the next
 * call of the same thread. */
NCCL_SHIM_FUNCTION(const char*, GetLastError, (ncclComm_t comm));
/** Reads NCCL_DEBUG, NCCL_DEBUG_FILE and NCCL_DEBUG_SUBSYS again. */
#ifdef NCCL_SHIM_IMPLEMENTATION
NCCL_SHIM_FUNCTION(void, ResetDebugInit, (void));
#else
NCCL_SHIM_API void ncclResetDebugInit(void) __attribute__((deprecated));
NCCL_SHIM_API void pncclResetDebugInit(void) __attribute__((deprecated));
#endif
/** @} */

/** @name Communicators @{ */
/** Makes the id of a communicator; called by one process, which hands it to the others. */
NCCL_SHIM_FUNCTION(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId));
/** Makes rank `rank` of `nranks`; all ranks call it. Several in one thread: between ncclGroupStart() and
 * ncclGroupEnd(). */
NCCL_SHIM_FUNCTION(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
/** The same with settings; `config` may be NULL. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommInitRankConfig,
                   (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config));
/** The same with several ids, the same ones in the same order on every rank. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommInitRankScalable,
                   (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                    ncclConfig_t* config));
/** All ranks of a communicator in the calling process: comm[i] is rank i, on device devlist[i] (NULL: device i). */
NCCL_SHIM_FUNCTION(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int* devlist));
/** Ends the use of a communicator: waits for what it has under way. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommFinalize, (ncclComm_t comm));
/** Releases the communicator. NULL is ignored. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommDestroy, (ncclComm_t comm));
/** Ends what is under way, on all ranks, and releases the communicator. NULL is ignored. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommAbort, (ncclComm_t comm));
/** Ends what is under way and keeps the handle, for ncclCommSplit(), ncclCommShrink() and ncclCommDestroy(). Flags: 0. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags));
/** Ranks of the same `color` form a new communicator, ordered by `key`. NCCL_SPLIT_NOCOLOR: *newcomm becomes NULL. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommSplit,
                   (ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config));
/** A new communicator without the excluded ranks; called by the others alone. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommShrink,
                   (ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                    ncclConfig_t* config, int shrinkFlags));
/** Makes the id of one ncclCommGrow(); the rank that calls it is that grow's root and hands the id to the new ranks. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId* uniqueId));
/** A new communicator of `comm`'s ranks, which keep their ranks, and new ones. The root gives `comm`, the id and rank -1;
 * the other ranks of `comm` the same with uniqueId NULL; a new rank comm NULL, the id and its rank. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommGrow,
                   (ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                    ncclConfig_t* config));
/** Refuses calls until ncclCommResume(); releases no memory. Flags: NCCL_SUSPEND_MEM. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags));
NCCL_SHIM_FUNCTION(ncclResult_t, CommResume, (ncclComm_t comm));
/** ncclInvalidUsage for what is not known. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value));
/** ncclInProgress while a call goes on in the background, else the first failure, else ncclSuccess. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t* asyncError));
NCCL_SHIM_FUNCTION(ncclResult_t, CommCount, (const ncclComm_t comm, int* count));
/** The device of the rank; without a GPU the number given to ncclCommInitAll(), else 0. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int* device));
NCCL_SHIM_FUNCTION(ncclResult_t, CommUserRank, (const ncclComm_t comm, int* rank));
/** @} */

/** @name Memory @{ */
/** Memory that the other ranks map: collectives on it copy nothing. Freed with ncclMemFree() alone. */
NCCL_SHIM_FUNCTION(ncclResult_t, MemAlloc, (void** ptr, size_t size));
NCCL_SHIM_FUNCTION(ncclResult_t, MemFree, (void* ptr));
/** Makes a buffer as fast as ncclMemAlloc() memory. *handle may become NULL, where nothing is gained. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommRegister, (const ncclComm_t comm, void* buff, size_t size, void** handle));
NCCL_SHIM_FUNCTION(ncclResult_t, CommDeregister, (const ncclComm_t comm, void* handle));
/** The same for a buffer that every rank has. *win is never NULL. */
NCCL_SHIM_FUNCTION(ncclResult_t, CommWindowRegister,
                   (ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags));
NCCL_SHIM_FUNCTION(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));
/** The buffer that the window was registered with. */
NCCL_SHIM_FUNCTION(ncclResult_t, WinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void** outUserPtr));
/** @} */

/** @name Operations made by the user @{ */
/** `*op`: the sum over all ranks of scalar x element, for `datatype` alone. */
NCCL_SHIM_FUNCTION(ncclResult_t, RedOpCreatePreMulSum,
                   (ncclRedOp_t * op, void* scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
                    ncclComm_t comm));
/** Calls that were given before may still be under way: they keep what they need. */
NCCL_SHIM_FUNCTION(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));
/** @} */

/** @name Collectives @{
 * Counts are numbers of elements. A buffer may be its own rank's part of the other one (in place).
 */
/** recvbuff on `root` = op over all ranks of sendbuff. */
NCCL_SHIM_FUNCTION(ncclResult_t, Reduce,
                   (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                    int root, ncclComm_t comm, cudaStream_t stream));
/** ncclBroadcast() in place. */
NCCL_SHIM_FUNCTION(ncclResult_t, Bcast,
                   (void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream));
/** recvbuff on every rank = sendbuff of `root`. */
NCCL_SHIM_FUNCTION(ncclResult_t, Broadcast,
                   (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                    ncclComm_t comm, cudaStream_t stream));
/** recvbuff on every rank = op over all ranks of sendbuff. */
NCCL_SHIM_FUNCTION(ncclResult_t, AllReduce,
                   (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                    ncclComm_t comm, cudaStream_t stream));
/** recvbuff on rank r = op over all ranks of block r (`recvcount` elements) of sendbuff. */
NCCL_SHIM_FUNCTION(ncclResult_t, ReduceScatter,
                   (const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                    ncclComm_t comm, cudaStream_t stream));
/** recvbuff on every rank = the sendbuffs of all ranks (`sendcount` elements each), in rank order. */
NCCL_SHIM_FUNCTION(ncclResult_t, AllGather,
                   (const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                    cudaStream_t stream));
/** Block s of recvbuff on rank d = block d of sendbuff on rank s. */
NCCL_SHIM_FUNCTION(ncclResult_t, AlltoAll,
                   (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                    cudaStream_t stream));
/** recvbuff on `root` = the sendbuffs of all ranks, in rank order. */
NCCL_SHIM_FUNCTION(ncclResult_t, Gather,
                   (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                    ncclComm_t comm, cudaStream_t stream));
/** recvbuff on rank r = block r of sendbuff on `root`. */
NCCL_SHIM_FUNCTION(ncclResult_t, Scatter,
                   (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                    ncclComm_t comm, cudaStream_t stream));
/** @} */

/** @name Point to point @{
 * The k-th send to a rank meets its k-th receive from here. Those that need one another belong in one group.
 */
NCCL_SHIM_FUNCTION(ncclResult_t, Send,
                   (const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                    cudaStream_t stream));
NCCL_SHIM_FUNCTION(ncclResult_t, Recv,
                   (void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                    cudaStream_t stream));
/** @} */

/** @name One-sided calls @{
 * Refused with ncclInvalidUsage.
 */
NCCL_SHIM_FUNCTION(ncclResult_t, PutSignal,
                   (const void* localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                    size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                    cudaStream_t stream));
NCCL_SHIM_FUNCTION(ncclResult_t, Signal,
                   (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
NCCL_SHIM_FUNCTION(ncclResult_t, WaitSignal,
                   (int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream));
/** @} */

/** @name Groups @{
 * Calls between the two start together at the outermost ncclGroupEnd(), which returns the first failure. After a wrong
 * call nothing of the group starts.
 */
NCCL_SHIM_FUNCTION(ncclResult_t, GroupStart, (void));
NCCL_SHIM_FUNCTION(ncclResult_t, GroupEnd, (void));
/** Ends the group without running it, and tells how long its calls would take, of the communicator that takes longest. */
NCCL_SHIM_FUNCTION(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * simInfo));
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* NCCL_H_ */
