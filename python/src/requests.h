// SPDX-License-Identifier: Apache-2.0
// Streams, and requests for what was given to them.
//
//   comm.allreduce(x, stream=s) ---> the call, a callback that takes down its result, an event
//   request.wait()             <--- the event is complete: the arrays are let go of
//
// The arrays of a call stay alive until it has ended, also where the program drops its request: what is dropped under
// way waits in a list, which later calls look through.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "treering/treering.h"

namespace treering::python {

namespace nb = nanobind;

// An ordered queue of operations.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  trStream_t handle(const char* call) const;
  void synchronize();
  bool query();
  void close();

 private:
  // Until what the stream has been given has ended, which a signal interrupts.
  static void wait(trStream_t handle);
  trStream_t handle_ = nullptr;
};

// What a call uses until it has ended.
struct Kept {
  std::vector<View> views;
  std::vector<nb::object> objects;
  void add(View view) { views.push_back(std::move(view)); }
  void add(nb::handle object) { objects.push_back(nb::borrow(object)); }
  void append(Kept other);
};

// What a call gives to the program when it has ended.
struct Result {
  nb::object value = nb::none();
  nb::object like;                     // of the library that the value is to be of; none: it stays as it is
  std::vector<nb::object> operations;  // of type Operation, whose functions may have failed
  // Raises what a function raised.
  void raise_failures() const;
  // The value, after raise_failures().
  nb::object finished() const;
};

class Request {
 public:
  Request() = default;
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // What it holds, and an event: before the call starts, so that nothing can fail between that and mark().
  void hold(trComm_t comm, nb::object stream, trStream_t handle, Kept kept, Result result);
  // Gives the callback and the event to the stream, behind the call. If that fails, the end of the call cannot
  // be seen: what it holds is never released.
  trResult_t mark() noexcept;

  // True when it has ended. Raises the call's failure.
  bool test();
  // Waits at most `timeout` seconds (None: as long as the communicator's deadline lets it), gives the result.
  nb::object wait(nb::object timeout);
  int fileno();

 private:
  struct Part;
  friend void sweep_dropped_requests();
  bool has_ended();
  int descriptor();
  bool wait_for_end(double seconds);
  nb::object settle();
  Part& part(const char* call);

  std::shared_ptr<Part> part_;
};

// Lets go of what requests that were dropped hold, as far as they have ended.
void sweep_dropped_requests();

void bind_requests(nb::module_& module);

}  // namespace treering::python
