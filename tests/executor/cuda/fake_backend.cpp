#include "executor/cuda/fake_backend.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "executor/cuda/fake_driver/fake_cuda.h"

namespace treering::cuda {
namespace {

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::abort();
}

void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) give_up(dlerror());
  return library;
}

void* find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) give_up(std::string("no function ") + name);
  return found;
}

}  // namespace

DeviceBackend* open_cuda_backend(std::string* why_not, uint32_t version) {
  static void* library = open_library(TREERING_CUDA_LIBRARY);
  char reason[512] = "unset";
  const auto open = reinterpret_cast<OpenDeviceBackend>(find(library, kOpenDeviceBackend));
  DeviceBackend* backend = open(version, reason, sizeof reason);
  *why_not = reason;
  return backend;
}

void* fake_function(const char* name) {
  static void* library = open_library(TREERING_FAKE_DRIVER);
  return find(library, name);
}

FakeCuda& fake_cuda() {
  static FakeCuda* made = [] {
    setenv("TREERING_CUDA_DRIVER", TREERING_FAKE_DRIVER, 1);
    return reinterpret_cast<GetFakeCuda>(fake_function("fake_cuda"))();
  }();
  return *made;
}

Device* fake_device(int ordinal) {
  fake_cuda();
  std::string why_not;
  DeviceBackend* backend = open_cuda_backend(&why_not);
  if (backend == nullptr) give_up(why_not);
  Device* device = nullptr;
  if (Status status = backend->open(ordinal, &device); !status.ok()) give_up(status.message());
  return device;
}

}  // namespace treering::cuda
