// SPDX-License-Identifier: Apache-2.0
// Waits without the GIL that Ctrl-C ends.
//
// Python's handler of a signal only takes a note. The main thread runs the program's handler, which for Ctrl-C raises
// KeyboardInterrupt, when it is back in Python; a thread in a wait must therefore be brought back. How depends on the
// wait:
//
// - A call without a stream waits inside of the library, on the thread that called, for speed. It can be ended by
//   trCommRevoke() from another thread. So a handler in front of Python's notes that a call is under way and wakes a
//   thread of this package, which revokes the communicators of that call. The call returns, and the handler's
//   exception is raised. The communicator has failed by then, on all ranks: the library must be done with the
//   program's arrays before it returns, and the other ranks must not wait for one that has given up.
//
//      signal ---> on_signal(): Python's handler, note ---> watcher: trCommRevoke() ---> the call returns
//
// - A wait for an event polls its descriptor, and lets Python look at its signals between two polls. What it waited
//   for goes on.
// - Calls that make a communicator have none to revoke yet: another thread makes them, while the main thread looks at
//   signals. After an exception that thread goes on by itself, and drops what it gets.
//
// Handlers run on the main thread alone; waits of other threads are not looked after.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <string>

#include "treering/treering.h"

namespace treering::python {

// The outcome of a call, with its message.
struct Outcome {
  trResult_t code = trSuccess;
  std::string message;
};

// While it lives the GIL is released, and a signal revokes the communicators.
class BlockingCall {
 public:
  // `comms` stay alive as long as this object. Raises what a handler of a signal raises that came before.
  BlockingCall(const trComm_t* comms, size_t count);
  ~BlockingCall();
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

 private:
  bool watched_;
  PyThreadState* thread_;
};

// Runs `call` without the GIL, where the calling thread may not be able to end it: see above. `call` refers to nothing
// that ends with the caller; with `abandoned` set it drops what it got.
using LongCall = std::function<trResult_t()>;
Outcome run_long_call(LongCall call, std::function<void()> abandoned);

// Waits, with the GIL released, until `descriptor` is readable; false at the end of `seconds` (negative: no end).
bool wait_readable(int descriptor, double seconds);

// Raises what a handler of a signal raises.
inline void raise_signals() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

}  // namespace treering::python
