// SPDX-License-Identifier: Apache-2.0
// The stand-in for libibverbs that the module has opened in a test program.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "support/fake_verbs/fake_verbs.h"

namespace treering::testing {

// A function of the stand-in, once the module is open.
template <typename Function, typename... Arguments>
void call_stand_in(const char* name, Arguments... arguments) {
  void* const stand_in = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  reinterpret_cast<Function*>(dlsym(stand_in, name))(arguments...);
  dlclose(stand_in);
}
inline fake_verbs_counters counters() {
  fake_verbs_counters counters{};
  call_stand_in<decltype(fake_verbs_get_counters)>("fake_verbs_get_counters", &counters);
  return counters;
}
inline void watch(const void* begin, size_t bytes) {
  call_stand_in<decltype(fake_verbs_watch_memory)>("fake_verbs_watch_memory", begin, bytes);
}
inline uint64_t registered_bytes() { return counters().bytes_registered; }

}  // namespace treering::testing
