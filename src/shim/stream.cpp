#include "shim/stream.h"

#include <fmt/format.h>

namespace treering::nccl {

Status classify_stream(const char* function, cudaStream_t stream, Stream* result) {
  // CUDA's constants: 0 and 1 are the legacy default stream, 2 the thread's default stream.
  constexpr uintptr_t kLastDefaultStream = 2;
  if (reinterpret_cast<uintptr_t>(stream) <= kLastDefaultStream) return *result = Stream(), Status();
  return {trInvalidUsage,
          fmt::format("{}: stream {} is a CUDA stream; this library works on host memory without CUDA: pass NULL",
                      function, static_cast<void*>(stream))};
}

int current_device() { return 0; }

}  // namespace treering::nccl
