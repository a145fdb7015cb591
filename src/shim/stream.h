// Stream: what a caller's cudaStream_t and device mean here. The one place that knows about devices: today there are
// none, so the null stream and the two default streams are the host's, on which calls block, and any other is refused.
#pragma once

#include "core/status.h"
#include "shim/include/nccl.h"

namespace treering::nccl {

struct Stream {
  trStream_t stream = nullptr;  // NULL: the call blocks
};

Status classify_stream(const char* function, cudaStream_t stream, Stream* result);

// The calling thread's device, which a new communicator belongs to.
int current_device();

}  // namespace treering::nccl
