// SPDX-License-Identifier: Apache-2.0
#include "cuda_driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace treering::perf {
namespace {

struct Opened {
  CudaDriver driver;
  std::string why_not;
};

Opened open_once() {
  Opened opened;
  // Not for programs that run with more rights than their caller.
  const char* chosen = secure_getenv("TREERING_CUDA_DRIVER");
  const char* path = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.why_not = std::string("no CUDA driver: ") + dlerror();
    return opened;
  }
  CudaDriver& driver = opened.driver;
#define TR_PERF_FIND(name, symbol, parameters)                                   \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, symbol)); \
  if (driver.name == nullptr && opened.why_not.empty())                          \
    opened.why_not = std::string(path) + " has no " symbol ": it is too old, or no CUDA driver";
  TR_PERF_CUDA_FUNCTIONS(TR_PERF_FIND)
#undef TR_PERF_FIND
  if (opened.why_not.empty()) opened.why_not = driver.error_of(driver.init(0), "cuInit");
  return opened;
}

}  // namespace

std::string CudaDriver::error_of(CudaResult result, const char* function) const {
  if (result == 0) return "";
  const char *name = nullptr, *text = nullptr;
  std::string error = std::string(function) + ": ";
  if (error_name(result, &name) != 0 || name == nullptr) return error + "CUDA error " + std::to_string(result);
  error += name;
  if (error_text(result, &text) == 0 && text != nullptr) error += std::string(" (") + text + ")";
  return error;
}

const CudaDriver* open_cuda_driver(std::string* why_not) {
  static const Opened opened = open_once();
  *why_not = opened.why_not;
  return opened.why_not.empty() ? &opened.driver : nullptr;
}

}  // namespace treering::perf
