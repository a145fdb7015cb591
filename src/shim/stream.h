// SPDX-License-Identifier: Apache-2.0
// Stream: what a caller's cudaStream_t and device mean here. The one place of the shim that knows about devices.
//
// With GPUs a communicator belongs to the device that is current when it is made, and streams are CUDA's. Without, all
// buffers are memory of the host: the null stream and the two default streams are the host's, on which calls block, and
// any other is refused.
#pragma once

#include "core/status.h"
#include "shim/include/nccl.h"

namespace treering::nccl {

struct Stream {
  trStream_t stream = nullptr;  // NULL: the call blocks
};

// Whether communicators are of GPUs: where there are some, unless TREERING_DEVICE is -1.
bool has_devices();
// The error where GPUs are there that cannot be used: buffers would be taken for memory of the host.
Status check_devices(const char* function);
// `device`: of the communicator.
Status classify_stream(const char* function, int device, cudaStream_t stream, Stream* result);

// The calling thread's device, which a new communicator belongs to; 0 where there is none.
int current_device();

// Memory of the current device, or of the host where there is none.
Status allocate(size_t bytes, void** memory);
Status release(void* memory);

}  // namespace treering::nccl
