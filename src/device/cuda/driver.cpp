// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace treering::cuda {
namespace {

// The names that the macros of cuda.h expand to.
#define TR_NAME_OF(name) #name
#define TR_EXPANDED_NAME(name) TR_NAME_OF(name)

bool find_functions(void* library, const char* path, Driver* driver, std::string* why_not) {
#define TR_FIND(name)                                                                                               \
  driver->name = reinterpret_cast<decltype(driver->name)>(dlsym(library, TR_EXPANDED_NAME(name)));                  \
  if (driver->name == nullptr) {                                                                                    \
    *why_not = fmt::format("{} has no {}: the driver is too old, or no CUDA driver", path, TR_EXPANDED_NAME(name)); \
    return false;                                                                                                   \
  }
  TR_DRIVER_FUNCTIONS(TR_FIND)
#undef TR_FIND
  return true;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// Kernels run on every driver of the major version that they were compiled with, and on later ones.
bool start(const Driver& driver, const char* path, std::string* why_not) {
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS) {
    *why_not = "cuInit: " + driver.describe(result);
    return false;
  }
  int version = 0;
  if (const CUresult result = driver.cuDriverGetVersion(&version); result != CUDA_SUCCESS) {
    *why_not = "cuDriverGetVersion: " + driver.describe(result);
    return false;
  }
  if (version / 1000 < CUDA_VERSION / 1000) {
    *why_not =
        fmt::format("{} is of CUDA {}; the kernels were compiled with CUDA {} and need a driver of CUDA {}.0 or later",
                    path, version_text(version), version_text(CUDA_VERSION), CUDA_VERSION / 1000);
    return false;
  }
  return true;
}

}  // namespace

std::string Driver::describe(CUresult result) const {
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr)
    return fmt::format("CUDA error {}", static_cast<int>(result));
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

Status Driver::status(CUresult result, const std::string& what) const {
  if (result == CUDA_SUCCESS) return {};
  return {trDeviceError, what + ": " + describe(result)};
}

const Driver* open_driver(std::string* why_not) {
  const char* path = driver_path();
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    *why_not = fmt::format("no CUDA driver: {}", reason != nullptr ? reason : path);
    return nullptr;
  }
  auto* driver = new Driver();
  if (find_functions(library, path, driver, why_not) && start(*driver, path, why_not)) return driver;
  delete driver;
  dlclose(library);
  return nullptr;
}

}  // namespace treering::cuda
