// The host functions of nccl_device.h: teams are arithmetic; resources for GPU kernels there are none.
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

}  // namespace

extern "C" {

ncclTeam_t pncclTeamWorld(ncclComm_t comm) {
  ncclTeam_t team;
  (void)world_of("ncclTeamWorld", comm, &team);
  return team;
}

// All ranks are on one machine.
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
