// SPDX-License-Identifier: Apache-2.0
#include "device/fake_backend.h"

#include <cstdio>
#include <cstdlib>

namespace treering::cuda {
namespace {

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::abort();
}

}  // namespace

void* fake_function(const char* name) {
  static void* library = open_library(TREERING_FAKE_DRIVER);
  return find_function(library, name);
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
