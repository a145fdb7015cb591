/**
 * @file nccl_device.h
 * The host functions of NCCL's device interface. Teams are answered; what makes resources for kernels is refused with
 * ncclInvalidUsage, because there are none.
 */
#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

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

/** All ranks. Of a bad communicator every team is {0, 0, 0}. */
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

#ifdef __cplusplus
}
#endif

#endif /* NCCL_DEVICE_H_ */
