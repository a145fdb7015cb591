// SPDX-License-Identifier: Apache-2.0
#include "core/shared_object.h"

#include <dlfcn.h>

#include <cstdlib>

namespace treering {
namespace {

std::string beside_this_library(const char* file) {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&open_shared_object), &info) == 0 || info.dli_fname == nullptr) return file;
  const std::string self = info.dli_fname;
  const size_t slash = self.rfind('/');
  return slash == std::string::npos ? file : self.substr(0, slash + 1) + file;
}

}  // namespace

void* open_shared_object(const char* file, const char* variable, Elsewhere elsewhere, std::string* why_not) {
  const char* chosen = std::getenv(variable);
  const bool named = chosen != nullptr && *chosen != '\0';
  void* library = dlopen((named ? std::string(chosen) : beside_this_library(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr || named) {
    if (library == nullptr) *why_not = dlerror();
    return library;
  }
  // That it lies beside this library but lacks something says more than that it lies nowhere else.
  const std::string first = dlerror();
  if (elsewhere == Elsewhere::kWhereTheSystemLooks) library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) *why_not = first;
  return library;
}

}  // namespace treering
