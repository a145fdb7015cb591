// SPDX-License-Identifier: Apache-2.0
#include "support/lacking_memory.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace treering::testing {

Memory& memory() {
  thread_local Memory of_thread;
  return of_thread;
}

}  // namespace treering::testing

[[gnu::noinline]] void* operator new(size_t bytes) {
  treering::testing::Memory& state = treering::testing::memory();
  const bool fails =
      state.fails_always || std::exchange(state.fails_next, false) || state.allocations == state.fails_at;
  ++state.allocations;
  if (!fails)
    if (void* memory = std::malloc(bytes)) return memory;
  ++state.failures;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
