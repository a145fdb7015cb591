// SPDX-License-Identifier: Apache-2.0
// A communicator as Python sees it, and how each of its calls is made.
//
//   a method:  arrays -> views, result ---> Call::run(start) ---> the result       (no stream)
//                                                            +--> a Request        (stream=)
//                                                            +--> kept by the group or the persistent operation
//
// A method says which C function it is and where its arrays lie. All that calls have in common is here.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "errors.h"
#include "requests.h"
#include "waits.h"

namespace treering::python {

namespace nb = nanobind;

class Communicator {
 public:
  explicit Communicator(trComm_t handle);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Raises where it was closed.
  trComm_t handle(const char* call) const;
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_open() const { return handle_.load() != nullptr; }
  // The handle, which is the caller's from now on; nullptr where it was closed.
  trComm_t take() { return handle_.exchange(nullptr); }
  void close();
  // As close(), and ends what the other ranks wait for.
  void abort();

 private:
  void end();
  std::atomic<trComm_t> handle_;
  int rank_ = 0, size_ = 0;
};

// Closes all communicators of the process; before it ends.
void close_all();

// A Python object of `type` (Communicator or a subclass in Python) that owns the handle.
nb::object own_communicator(nb::handle type, trComm_t handle);

// Calls that are collected: by a group, or by a persistent operation.
struct Recording {
  Kept kept;
  std::vector<trComm_t> comms;
  std::vector<nb::object> requests;
  std::vector<nb::object> operations;  // of calls that have no request of their own
  nb::object stream = nb::none();      // of the calls, where there is one
  trStream_t stream_handle = nullptr;
  bool without_stream = false, several_streams = false, keeps = false;
};
// The one that the calling thread makes calls for; nullptr: none.
Recording*& current_recording();

// One call of a communicator.
class Call {
 public:
  Call(Communicator& comm, const char* name, nb::handle stream);

  const char* name() const { return name_; }
  trComm_t handle() const { return handle_; }
  Communicator& comm() const { return comm_; }
  size_t ranks() const { return static_cast<size_t>(comm_.size()); }
  size_t rank() const { return static_cast<size_t>(comm_.rank()); }
  bool is_root(int root) const { return comm_.rank() == root; }

  // The memory of an array that the call reads. Pass it to keep() before run().
  View input(nb::handle array, const char* argument = "x") { return view_of(array, Access::kRead, name_, argument); }
  // Where the result goes: `out`, which must have the type and as many elements as `shape`; None: a new array like
  // `like`. It becomes the call's result. Gives its address. `in`: the view of `like`, where the result has its shape,
  // so that an array that is both is looked at once.
  void* output(nb::handle out, nb::handle like, trDataType_t type, const std::vector<int64_t>& shape,
               const char* wanted, const View* in = nullptr);
  void keep(View view) { kept_.add(std::move(view)); }
  void keep(nb::handle object) { kept_.add(object); }
  void set_result(nb::handle value) { result_.value = nb::borrow(value); }
  // An argument `op`: a name, or an Operation of this communicator.
  trRedOp_t operation(nb::handle op);

  // Makes the call: `start` takes the stream.
  template <class Start>
  nb::object run(Start&& start) {
    sweep_dropped_requests();
    trResult_t code = trSuccess;
    if (blocks()) {
      BlockingCall blocking(&handle_, 1);
      code = start(static_cast<trStream_t>(nullptr));
    } else {
      prepare();
      code = start(stream_handle_);
    }
    if (code != trSuccess) fail(code);
    return started();
  }

 private:
  bool blocks() const { return stream_handle_ == nullptr && current_recording() == nullptr; }
  [[noreturn]] void fail(trResult_t code);
  // Makes the request, where the call gets one: once it has started, its arrays must have a place.
  void prepare();
  nb::object started();
  nb::object record(Recording* recording);

  Communicator& comm_;
  const char* name_;
  trComm_t handle_;
  nb::handle stream_;
  trStream_t stream_handle_ = nullptr;
  Kept kept_;
  Result result_;
  nb::object request_;
};

}  // namespace treering::python
