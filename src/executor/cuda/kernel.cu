// The kernels of one data type, compiled once for each row of TR_DEVICE_TYPES with
// -DTREERING_KERNEL_NUMBER=<Number> -DTREERING_KERNEL_NAME=<name>.
#include "executor/cuda/kernels.h"

using namespace treering::cuda;

// Blocks of up to this many threads; one block a multiprocessor is enough for a channel.
#define TR_KERNEL(name, protocol, suffix)                                                                        \
  extern "C" __global__ void __launch_bounds__(512, 1)                                                           \
      treering_##name##_##suffix(const __grid_constant__ DeviceCall call) {                      \
    __shared__ BlockShared shared;                                                               \
    run_block<TREERING_KERNEL_NUMBER, DeviceProtocol::protocol>( \
        call, blockIdx.x, &shared, Thread());                                                    \
  }
#define TR_KERNELS(name)         \
  TR_KERNEL(name, kLl, ll)       \
  TR_KERNEL(name, kLl128, ll128) \
  TR_KERNEL(name, kSimple, simple)

TR_KERNELS(TREERING_KERNEL_NAME)
