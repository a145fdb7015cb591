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
// - Calls that make a communicator run on another thread, while the main thread looks at signals. After an exception
//   the communicator that they began from is revoked; the first one of a process has none, so that its thread goes on
//   by itself until the deadline. Either drops what it gets.
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
  static void end();
  bool watched_;
  PyThreadState* thread_;
};

// A call that makes a communicator. It refers to nothing that ends with the caller.
struct LongCall {
  std::function<trResult_t()> run;
  std::function<void()> drop;  // what it got
  trComm_t from = nullptr;     // the communicator that it began from, if there is one
};
// Runs it without the GIL.
Outcome run_long_call(LongCall call);
// Whether a call that was given up still uses the communicator. Then the call destroys it at its end: it cannot be
// ended before, and trCommDestroy() would wait for it.
bool leave_to_abandoned_call(trComm_t comm);

// Waits, with the GIL released, until `descriptor` is readable; false at the end of `seconds` (negative: no end).
bool wait_readable(int descriptor, double seconds);

// Raises what a handler of a signal raises.
inline void raise_signals() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

}  // namespace treering::python
