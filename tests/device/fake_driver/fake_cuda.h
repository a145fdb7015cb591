// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU, for tests: "device memory" is memory of the host, streams are threads, and kernels are
// the device code on the CPU. The backend finds it through TREERING_CUDA_DRIVER.
//
// It is as strict as a driver: calls need the right current context, memory and streams have to be those of its device.
// Tests reach FakeCuda through the function fake_cuda() of the shared object: what the driver is like, which call fails
// next, and what was called.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <string>

namespace treering::cuda {

struct FakeCuda {
  // What it is like.
  int devices = 2;  // or FAKE_CUDA_DEVICES, for programs that do not see this
  int driver_version = CUDA_VERSION;
  int capability = 90;
  bool peer_access = true;
  bool unified_addresses = true;       // host memory has the same address on devices
  bool pointers_need_context = false;  // cuPointerGetAttributes without a context fails
  int kernel_threads = 512;            // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
  size_t memory_bytes = size_t{400} << 20;
  const void* managed = nullptr;  // an address that counts as managed memory of device 0

  void fail_next(const std::string& function, CUresult result) {
    std::lock_guard lock(mutex);
    failing[function] = result;
  }
  int calls_of(const std::string& function) {
    std::lock_guard lock(mutex);
    return calls[function];
  }

  std::mutex mutex;
  std::map<std::string, CUresult> failing;
  std::map<std::string, int> calls;
  // What there is at the moment.
  int allocations = 0, host_allocations = 0, opened_handles = 0, modules = 0, streams = 0, events = 0, contexts = 0;
  int shareable = 0, reservations = 0, mappings = 0;  // of cuMemCreate and its kind
};

using GetFakeCuda = FakeCuda* (*)();

}  // namespace treering::cuda
