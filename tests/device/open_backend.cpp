// SPDX-License-Identifier: Apache-2.0
#include "device/open_backend.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace treering::cuda {

void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  std::fprintf(stderr, "error: %s\n", dlerror());
  std::abort();
}

void* find_function(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found != nullptr) return found;
  std::fprintf(stderr, "error: no function %s\n", name);
  std::abort();
}

const char* cuda_library() { return TREERING_CUDA_LIBRARY; }

DeviceBackend* open_cuda_backend(std::string* why_not, uint32_t version) {
  static void* library = open_library(cuda_library());
  char reason[512] = "unset";
  const auto open = reinterpret_cast<OpenDeviceBackend>(find_function(library, kOpenDeviceBackend));
  DeviceBackend* backend = open(version, reason, sizeof reason);
  *why_not = reason;
  return backend;
}

}  // namespace treering::cuda
