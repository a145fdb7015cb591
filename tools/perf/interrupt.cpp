// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <signal.h>

#include <atomic>

namespace treering::perf {
namespace {

std::atomic<bool> came{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may store nothing else");

void note(int) { came.store(true, std::memory_order_relaxed); }

}  // namespace

void note_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // calls of the system inside the library go on
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return came.load(std::memory_order_relaxed); }

}  // namespace treering::perf
