// SPDX-License-Identifier: Apache-2.0
// The host functions of nccl_device.h: teams are arithmetic; resources for GPU kernels there are none.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "shim/comm.h"
#include "shim/entry.h"
#include "shim/include/nccl_device.h"

using treering::Status;
using namespace treering::nccl;

namespace {

// The team of all ranks; {0, 0, 0} and false for a bad communicator.
bool world_of(const char* function, ncclComm_t handle, ncclTeam_t* team) {
  *team = {0, 0, 0};
  return entry(handle, [&]() -> Status {
           CommPtr comm;
           TR_RETURN_IF_ERROR(find_comm(function, handle, &comm));
           TR_RETURN_IF_ERROR(comm->expect_ready(function));
           *team = {comm->ranks, comm->rank, 1};
           return {};
         }) == ncclSuccess;
}

int rank_in(const char* function, ncclComm_t comm, const ncclTeam_t& team, int rank) {
  ncclTeam_t world;
  return world_of(function, comm, &world) ? world.rank + (rank - team.rank) * team.stride : -1;
}

ncclResult_t refuse(const char* function) {
  return entry([&]() -> Status {
    return {trInvalidUsage,
            fmt::format("{}: there are no GPU kernels here that could use it; use the host's calls", function)};
  });
}

ncclResult_t refuse_pointer(const char* function, void** pointer) {
  if (pointer == nullptr) return entry([&] { return null_argument(function, "outPtr"); });
  *pointer = nullptr;
  return refuse(function);
}

// Writes what the caller's struct has room for: one of an older header is shorter.
Status query_properties(ncclComm_t handle, ncclCommProperties_t* properties) {
  constexpr const char* kName = "ncclCommQueryProperties";
  constexpr unsigned kMagic = 0xcafebeef;
  if (properties == nullptr) return null_argument(kName, "props");
  if (properties->magic != kMagic || properties->size < offsetof(ncclCommProperties_t, rank))
    return {trInvalidArgument, fmt::format("{}: initialise the struct with NCCL_COMM_PROPERTIES_INITIALIZER", kName)};
  CommPtr comm;
  TR_RETURN_IF_ERROR(find_comm(kName, handle, &comm));
  TR_RETURN_IF_ERROR(comm->expect_ready(kName));
  ncclCommProperties_t all;
  std::memset(&all, 0, sizeof all);
  all.size = properties->size;
  all.magic = properties->magic;
  all.version = properties->version;
  all.rank = comm->rank;
  all.nRanks = comm->ranks;
  all.cudaDev = comm->device;
  all.nvmlDev = -1;  // NVML is not asked
  all.ginType = all.railedGinType = NCCL_GIN_TYPE_NONE;
  all.nLsaTeams = 1;  // as ncclTeamLsa() says
  std::memcpy(properties, &all, std::min(properties->size, sizeof all));
  return {};
}

}  // namespace

extern "C" {

ncclTeam_t pncclTeamWorld(ncclComm_t comm) {
  ncclTeam_t team;
  (void)world_of("ncclTeamWorld", comm, &team);
  return team;
}

// All ranks, as if they were on one machine: the C API does not tell which are.
ncclTeam_t pncclTeamLsa(ncclComm_t comm) {
  ncclTeam_t team;
  (void)world_of("ncclTeamLsa", comm, &team);
  return team;
}

ncclTeam_t pncclTeamRail(ncclComm_t comm) {
  ncclTeam_t world;
  if (!world_of("ncclTeamRail", comm, &world)) return world;
  return {1, 0, world.nRanks};
}

int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return rank_in("ncclTeamRankToWorld", comm, team, rank);
}

int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  return rank_in("ncclTeamRankToLsa", comm, team, rank);
}

int pncclLLA2ACalcSlots(int elements, int bytes) {
  constexpr int kSlotBytes = 8;
  return elements * ((bytes + kSlotBytes - 1) / kSlotBytes);
}

ncclResult_t pncclDevCommCreate(ncclComm_t, ncclDevCommRequirements_t const*, ncclDevComm_t*) {
  return refuse("ncclDevCommCreate");
}
ncclResult_t pncclDevCommDestroy(ncclComm_t, ncclDevComm_t const*) { return refuse("ncclDevCommDestroy"); }
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t, int, ncclLsaBarrierHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return refuse("ncclLsaBarrierCreateRequirement");
}
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return refuse("ncclGinBarrierCreateRequirement");
}
ncclResult_t pncclLLA2ACreateRequirement(int, int, ncclLLA2AHandle_t*, ncclDevResourceRequirements_t*) {
  return refuse("ncclLLA2ACreateRequirement");
}

ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t, int, int, struct ncclGinInboxA2AHandle*,
                                               ncclDevResourceRequirements_t*) {
  return refuse("ncclGinInboxA2ACreateRequirement");
}
ncclResult_t pncclGinOutboxCreateRequirement(int, int, struct ncclGinOutboxHandle*, ncclDevResourceRequirements_t*) {
  return refuse("ncclGinOutboxCreateRequirement");
}

ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t, size_t, int, void** pointer) {
  return refuse_pointer("ncclGetLsaDevicePointer", pointer);
}
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void** pointer) {
  return refuse_pointer("ncclGetPeerDevicePointer", pointer);
}
ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void** pointer) {
  return refuse_pointer("ncclGetLsaMultimemDevicePointer", pointer);
}
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t, size_t, ncclMultimemHandle_t, void** pointer) {
  return refuse_pointer("ncclGetMultimemDevicePointer", pointer);
}

ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  return entry(comm, [&] { return query_properties(comm, properties); });
}

}  // extern "C"

NCCL_SHIM_EXPORT(TeamWorld);
NCCL_SHIM_EXPORT(TeamLsa);
NCCL_SHIM_EXPORT(TeamRail);
NCCL_SHIM_EXPORT(TeamRankToWorld);
NCCL_SHIM_EXPORT(TeamRankToLsa);
NCCL_SHIM_EXPORT(LLA2ACalcSlots);
NCCL_SHIM_EXPORT(DevCommCreate);
NCCL_SHIM_EXPORT(DevCommDestroy);
NCCL_SHIM_EXPORT(LsaBarrierCreateRequirement);
NCCL_SHIM_EXPORT(GinBarrierCreateRequirement);
NCCL_SHIM_EXPORT(LLA2ACreateRequirement);
NCCL_SHIM_EXPORT(GinInboxA2ACreateRequirement);
NCCL_SHIM_EXPORT(GinOutboxCreateRequirement);
NCCL_SHIM_EXPORT(GetLsaDevicePointer);
NCCL_SHIM_EXPORT(GetPeerDevicePointer);
NCCL_SHIM_EXPORT(GetLsaMultimemDevicePointer);
NCCL_SHIM_EXPORT(GetMultimemDevicePointer);
NCCL_SHIM_EXPORT(CommQueryProperties);
