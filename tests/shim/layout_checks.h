// SPDX-License-Identifier: Apache-2.0
/* Sizes, offsets and values of NCCL 2.28.9's interface and of what 2.30 has added, checked by the compiler: included by a C11 and by a C++ file. */
#include <stddef.h>

#include "nccl.h"
#include "nccl_device.h"
#include "nccl.h" /* twice does no harm */

#ifdef __cplusplus
#define CHECK_AT_COMPILE_TIME(condition) static_assert(condition, #condition)
#else
#define CHECK_AT_COMPILE_TIME(condition) _Static_assert(condition, #condition)
#endif
#define CHECK_OFFSET(field, offset) CHECK_AT_COMPILE_TIME(offsetof(ncclConfig_t, field) == (offset))

CHECK_AT_COMPILE_TIME(sizeof(ncclUniqueId) == 128);
CHECK_AT_COMPILE_TIME(sizeof(ncclResult_t) == 4);
CHECK_AT_COMPILE_TIME(sizeof(ncclDataType_t) == 4);
CHECK_AT_COMPILE_TIME(sizeof(ncclRedOp_t) == 4);
CHECK_AT_COMPILE_TIME(sizeof(ncclScalarResidence_t) == 4);
CHECK_AT_COMPILE_TIME(sizeof(ncclSimInfo_t) == 24);
CHECK_AT_COMPILE_TIME(offsetof(ncclSimInfo_t, estimatedTime) == 16);
CHECK_AT_COMPILE_TIME(sizeof(ncclTeam_t) == 12);
CHECK_AT_COMPILE_TIME(sizeof(ncclConfig_t) == 80);
CHECK_OFFSET(size, 0);
CHECK_OFFSET(magic, 8);
CHECK_OFFSET(version, 12);
CHECK_OFFSET(blocking, 16);
CHECK_OFFSET(cgaClusterSize, 20);
CHECK_OFFSET(minCTAs, 24);
CHECK_OFFSET(maxCTAs, 28);
CHECK_OFFSET(netName, 32);
CHECK_OFFSET(splitShare, 40);
CHECK_OFFSET(trafficClass, 44);
CHECK_OFFSET(commName, 48);
CHECK_OFFSET(collnetEnable, 56);
CHECK_OFFSET(CTAPolicy, 60);
CHECK_OFFSET(shrinkShare, 64);
CHECK_OFFSET(nvlsCTAs, 68);
CHECK_OFFSET(nChannelsPerNetPeer, 72);
CHECK_OFFSET(nvlinkCentricSched, 76);

CHECK_AT_COMPILE_TIME(NCCL_VERSION_CODE == 22809);
CHECK_AT_COMPILE_TIME(NCCL_VERSION(2, 8, 3) == 2803);
CHECK_AT_COMPILE_TIME(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2);
CHECK_AT_COMPILE_TIME(ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5);
CHECK_AT_COMPILE_TIME(ncclRemoteError == 6 && ncclInProgress == 7 && ncclNumResults == 8);
CHECK_AT_COMPILE_TIME(ncclInt8 == 0 && ncclChar == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt == 2);
CHECK_AT_COMPILE_TIME(ncclUint32 == 3 && ncclInt64 == 4 && ncclUint64 == 5 && ncclFloat16 == 6 && ncclHalf == 6);
CHECK_AT_COMPILE_TIME(ncclFloat32 == 7 && ncclFloat == 7 && ncclFloat64 == 8 && ncclDouble == 8);
CHECK_AT_COMPILE_TIME(ncclBfloat16 == 9 && ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12);
CHECK_AT_COMPILE_TIME(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4);
CHECK_AT_COMPILE_TIME(ncclNumOps == 5 && ncclMaxRedOp == 0x7fffffff);
CHECK_AT_COMPILE_TIME(ncclScalarDevice == 0 && ncclScalarHostImmediate == 1);

CHECK_AT_COMPILE_TIME(ncclStatGpuMemSuspend == 0 && ncclStatGpuMemSuspended == 1);
CHECK_AT_COMPILE_TIME(ncclStatGpuMemPersist == 2 && ncclStatGpuMemTotal == 3 && sizeof(ncclCommMemStat_t) == 4);
CHECK_AT_COMPILE_TIME(NCCL_SUSPEND_MEM == 1 && NCCL_WIN_STRICT_ORDERING == 2);
CHECK_AT_COMPILE_TIME(sizeof(ncclWaitSignalDesc_t) == 16 && offsetof(ncclWaitSignalDesc_t, ctx) == 12);
CHECK_AT_COMPILE_TIME(offsetof(ncclWaitSignalDesc_t, peer) == 4 && offsetof(ncclWaitSignalDesc_t, sigIdx) == 8);
CHECK_AT_COMPILE_TIME(sizeof(ncclMultimemHandle_t) == sizeof(void*));

#define CHECK_PROPERTY(field, offset) CHECK_AT_COMPILE_TIME(offsetof(ncclCommProperties_t, field) == (offset))
CHECK_AT_COMPILE_TIME(sizeof(ncclCommProperties_t) == 56);
CHECK_PROPERTY(magic, 8);
CHECK_PROPERTY(version, 12);
CHECK_PROPERTY(rank, 16);
CHECK_PROPERTY(nRanks, 20);
CHECK_PROPERTY(cudaDev, 24);
CHECK_PROPERTY(nvmlDev, 28);
CHECK_PROPERTY(deviceApiSupport, 32);
CHECK_PROPERTY(multimemSupport, 33);
CHECK_PROPERTY(ginType, 36);
CHECK_PROPERTY(nLsaTeams, 40);
CHECK_PROPERTY(hostRmaSupport, 44);
CHECK_PROPERTY(railedGinType, 48);
CHECK_AT_COMPILE_TIME(NCCL_GIN_TYPE_NONE == 0 && NCCL_GIN_TYPE_PROXY == 2);
CHECK_AT_COMPILE_TIME(NCCL_GIN_TYPE_GDAKI == 3 && NCCL_GIN_TYPE_GPI == 4);

/* The initialisers, which only run shows. Returns the number of wrong fields. */
static int check_initialisers(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const int integers[] = {config.blocking,  config.cgaClusterSize,      config.minCTAs,
                          config.maxCTAs,   config.splitShare,          config.trafficClass,
                          config.CTAPolicy, config.collnetEnable,       config.shrinkShare,
                          config.nvlsCTAs,  config.nChannelsPerNetPeer, config.nvlinkCentricSched};
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  int wrong = config.size != 80 || config.magic != 0xcafebeef || config.version != 22809 || config.netName != NULL ||
              config.commName != NULL;
  for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) wrong += integers[i] != INT_MIN;
  wrong += info.size != 24 || info.magic != 0x74685283 || info.version != 22809 || info.estimatedTime != -1.0f;
  wrong += properties.size != 56 || properties.magic != 0xcafebeef || properties.version != 22809;
  return wrong;
}
