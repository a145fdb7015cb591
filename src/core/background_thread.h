// SPDX-License-Identifier: Apache-2.0
// Threads of the library.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <functional>

namespace treering {

// Starts a detached thread with a stack of its own size: what `ulimit -s` says is about the user's threads, and may be
// far more than is needed, or less. The program's thread-local data, which glibc takes from a thread's stack, comes on
// top. Whether it could be started; `id` then names it.
bool start_background_thread(const char* name, size_t stack_bytes, std::function<void()> work, pthread_t* id = nullptr);
// The same, not detached: `id` is given to pthread_join().
bool start_joined_thread(const char* name, size_t stack_bytes, std::function<void()> work, pthread_t* id);

}  // namespace treering
