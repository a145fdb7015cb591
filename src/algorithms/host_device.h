// SPDX-License-Identifier: Apache-2.0
// TR_HOST_DEVICE: marks functions that the CUDA kernel uses as well.
#pragma once

#if defined(__CUDACC__)
#define TR_HOST_DEVICE __host__ __device__
#else
#define TR_HOST_DEVICE
#endif
