// SPDX-License-Identifier: Apache-2.0
#include "core/background_thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <memory>
#include <utility>

namespace treering {
namespace {

constexpr size_t kUnknownThreadLocal = 1 << 20;

// What a thread cannot use of its stack: glibc says it to its own libraries (and to Java, Rust and Go, by this name).
size_t taken_bytes() {
  using Least = size_t (*)(const pthread_attr_t*);
  static const auto least = reinterpret_cast<Least>(dlsym(RTLD_DEFAULT, "__pthread_get_minstack"));
  if (least == nullptr) return kUnknownThreadLocal;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  const size_t taken = least(&attributes);
  pthread_attr_destroy(&attributes);
  return taken;
}

struct Start {
  const char* name;
  std::function<void()> work;
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  pthread_setname_np(pthread_self(), start->name);
  start->work();
  return nullptr;
}

bool start_thread(const char* name, size_t stack_bytes, std::function<void()> work, int detached, pthread_t* id) {
  auto start = std::make_unique<Start>(Start{name, std::move(work)});
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes + taken_bytes());
  pthread_attr_setdetachstate(&attributes, detached);
  pthread_t thread;
  const bool started = pthread_create(&thread, &attributes, &run, start.get()) == 0;
  if (started) (void)start.release();
  if (started && id != nullptr) *id = thread;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

bool start_background_thread(const char* name, size_t stack_bytes, std::function<void()> work, pthread_t* id) {
  return start_thread(name, stack_bytes, std::move(work), PTHREAD_CREATE_DETACHED, id);
}

bool start_joined_thread(const char* name, size_t stack_bytes, std::function<void()> work, pthread_t* id) {
  return start_thread(name, stack_bytes, std::move(work), PTHREAD_CREATE_JOINABLE, id);
}

}  // namespace treering
