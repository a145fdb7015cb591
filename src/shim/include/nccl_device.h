// SPDX-License-Identifier: Apache-2.0
/**
 * @file nccl_device.h
 * The host functions of NCCL's device interface. Teams are answered; what makes resources for kernels is refused with
 * ncclInvalidUsage, because there are none.
 */
#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#include <stdbool.h>

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks of a communicator at equal distances: `rank` of `nRanks`, `stride` ranks of the communicator apart. */
struct ncclTeam {
  int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;

typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

struct ncclGinInboxA2AHandle;
struct ncclGinOutboxHandle;

/** Where a set of GPUs' memory is written at once. */
struct ncclMultimemHandle {
  void* mcBasePtr;
};
typedef struct ncclMultimemHandle ncclMultimemHandle_t;

typedef enum NCCL_SHIM_INT {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4
} ncclGinType_t;

/** What a communicator has. Initialise with NCCL_COMM_PROPERTIES_INITIALIZER. */
typedef struct ncclCommProperties {
  size_t size;
  unsigned int magic; /**< 0xcafebeef */
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;                 /**< as ncclCommCuDevice() */
  int nvmlDev;                 /**< -1: not known */
  bool deviceApiSupport;       /**< false */
  bool multimemSupport;        /**< false */
  ncclGinType_t ginType;       /**< NCCL_GIN_TYPE_NONE */
  int nLsaTeams;               /**< 1 */
  bool hostRmaSupport;         /**< false */
  ncclGinType_t railedGinType; /**< NCCL_GIN_TYPE_NONE */
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                                                          \
  {                                                                                                               \
    sizeof(ncclCommProperties_t), 0xcafebeef, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, NCCL_GIN_TYPE_NONE, 0, \
        false, NCCL_GIN_TYPE_NONE                                                                                 \
  }

NCCL_SHIM_FUNCTION(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t* props));

/** All ranks. Every team of a bad communicator is {0, 0, 0}. */
NCCL_SHIM_FUNCTION(ncclTeam_t, TeamWorld, (ncclComm_t comm));
/** The ranks that load from and store to one another's memory: all, on one machine. */
NCCL_SHIM_FUNCTION(ncclTeam_t, TeamLsa, (ncclComm_t comm));
/** The ranks of the same place in other such sets: this rank alone. */
NCCL_SHIM_FUNCTION(ncclTeam_t, TeamRail, (ncclComm_t comm));
/** Rank in the communicator of rank `rank` of a team that the caller is in; -1 for a bad communicator. */
NCCL_SHIM_FUNCTION(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank));
NCCL_SHIM_FUNCTION(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank));
/** Slots of 8 bytes for `maxElts` elements of up to `maxEltSize` bytes. */
NCCL_SHIM_FUNCTION(int, LLA2ACalcSlots, (int maxElts, int maxEltSize));

/* Refused with ncclInvalidUsage. */
NCCL_SHIM_FUNCTION(ncclResult_t, DevCommCreate,
                   (ncclComm_t comm, ncclDevCommRequirements_t const* requirements, ncclDevComm_t* outDevComm));
NCCL_SHIM_FUNCTION(ncclResult_t, DevCommDestroy, (ncclComm_t comm, ncclDevComm_t const* devComm));
NCCL_SHIM_FUNCTION(ncclResult_t, LsaBarrierCreateRequirement,
                   (ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle_t* outHandle,
                    ncclDevResourceRequirements_t* outReq));
NCCL_SHIM_FUNCTION(ncclResult_t, GinBarrierCreateRequirement,
                   (ncclComm_t comm, ncclTeam_t team, int nBarriers, ncclGinBarrierHandle_t* outHandle,
                    ncclDevResourceRequirements_t* outReq));
NCCL_SHIM_FUNCTION(ncclResult_t, LLA2ACreateRequirement,
                   (int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle, ncclDevResourceRequirements_t* outReq));
NCCL_SHIM_FUNCTION(ncclResult_t, GinInboxA2ACreateRequirement,
                   (ncclTeam_t peers, int nBlocks, int size_log2, struct ncclGinInboxA2AHandle* outHandle,
                    ncclDevResourceRequirements_t* outReq));
NCCL_SHIM_FUNCTION(ncclResult_t, GinOutboxCreateRequirement,
                   (int nBlocks, int size_log2, struct ncclGinOutboxHandle* outHandle,
                    ncclDevResourceRequirements_t* outReq));

/* Refused with ncclInvalidUsage; *outPtr becomes NULL. */
NCCL_SHIM_FUNCTION(ncclResult_t, GetLsaDevicePointer, (ncclWindow_t window, size_t offset, int lsaRank, void** outPtr));
NCCL_SHIM_FUNCTION(ncclResult_t, GetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void** outPtr));
NCCL_SHIM_FUNCTION(ncclResult_t, GetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void** outPtr));
NCCL_SHIM_FUNCTION(ncclResult_t, GetMultimemDevicePointer,
                   (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void** outPtr));

#ifdef __cplusplus
}
#endif

#endif /* NCCL_DEVICE_H_ */
