// SPDX-License-Identifier: Apache-2.0
#include "support/descriptor_limit.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace treering::testing {

namespace {

// Checks of types share it: the limit waits until those that have begun, and may hold a pipe, are through.
std::shared_mutex limit_mutex;
bool is_limited = false;

bool set_limit(rlim_t most, bool limits) {
  std::unique_lock lock(limit_mutex);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  limit.rlim_cur = std::min(most, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  is_limited = limits;
  return true;
}

}  // namespace

bool limit_descriptors(rlim_t first_forbidden) { return set_limit(first_forbidden, true); }

// Numbers in use may lie between those that are free.
bool leave_descriptors(size_t count) {
  std::vector<int> taken;
  while (taken.size() <= count) {
    taken.push_back(dup(0));
    if (taken.back() < 0) break;
  }
  for (const int fd : taken) close(fd);
  return taken.back() >= 0 && limit_descriptors(static_cast<rlim_t>(taken.back()));
}

void allow_descriptors() { (void)set_limit(RLIM_INFINITY, false); }

}  // namespace treering::testing

#if defined(__SANITIZE_ADDRESS__)
extern "C" {

// UBSAN_OPTIONS, where it can be read, comes after this.
__attribute__((visibility("default"))) const char* __ubsan_default_options() {
  return "print_stacktrace=1:halt_on_error=1";
}

// In place of the sanitizer's own, which it calls: what compiled code calls for an object of a type that is not known to be right.
__attribute__((visibility("default"))) void __ubsan_handle_dynamic_type_cache_miss(void* site, void* object,
                                                                                   void* hash) {
  using Check = void(void*, void*, void*);
  // No static initialisation: its lock and the one that dlsym() takes would be taken in both orders.
  static std::atomic<Check*> check{nullptr};
  if (check == nullptr) check = reinterpret_cast<Check*>(dlsym(RTLD_NEXT, "__ubsan_handle_dynamic_type_cache_miss"));
  std::shared_lock lock(treering::testing::limit_mutex);
  if (!treering::testing::is_limited) check.load()(site, object, hash);
}

}  // extern "C"
#endif
