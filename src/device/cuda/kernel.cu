// SPDX-License-Identifier: Apache-2.0
// The kernels of one data type, compiled once for each row of TR_DEVICE_TYPES with -DTREERING_KERNEL_NAME=<name>.
#include "device/kernels.h"

using namespace treering::cuda;

// The Number of a row by its name, so that the build knows names alone.
namespace number_of {
#define TR_NUMBER(type, kernels, name, storage, bits, Number, ...) using kernels = Number;
TR_DEVICE_TYPES(TR_NUMBER)
#undef TR_NUMBER
}  // namespace number_of

// Blocks of up to this many threads; one block a multiprocessor is enough for a channel.
#define TR_KERNEL(name, protocol, suffix)                                                        \
  extern "C" __global__ void __launch_bounds__(512, 1)                                           \
      treering_##name##_##suffix(const __grid_constant__ DeviceLaunch launch) {                  \
    __shared__ BlockShared shared;                                                               \
    run_block<number_of::name, DeviceProtocol::protocol>(launch, blockIdx.x, &shared, Thread()); \
  }
#define TR_KERNELS(name)         \
  TR_KERNEL(name, kLl, ll)       \
  TR_KERNEL(name, kLl128, ll128) \
  TR_KERNEL(name, kSimple, simple)

TR_KERNELS(TREERING_KERNEL_NAME)
