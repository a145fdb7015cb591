/* Sizes, offsets and values of NCCL 2.28.9's interface, checked by the compiler: included by a C11 and by a C++ file. */
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

/* The initialisers, which only run shows. Returns the number of wrong fields. */
static int check_initialisers(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const int integers[] = {config.blocking,  config.cgaClusterSize,      config.minCTAs,
                          config.maxCTAs,   config.splitShare,          config.trafficClass,
                          config.CTAPolicy, config.collnetEnable,       config.shrinkShare,
                          config.nvlsCTAs,  config.nChannelsPerNetPeer, config.nvlinkCentricSched};
  int wrong = config.size != 80 || config.magic != 0xcafebeef || config.version != 22809 || config.netName != NULL ||
              config.commName != NULL;
  for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) wrong += integers[i] != INT_MIN;
  wrong += info.size != 24 || info.magic != 0x74685283 || info.version != 22809 || info.estimatedTime != -1.0f;
  return wrong;
}
