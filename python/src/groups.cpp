// SPDX-License-Identifier: Apache-2.0
// Groups and persistent operations: calls that are collected first.
#include "training.h"

namespace treering::python {
namespace {

// The library has no way to give up a group but a call that is wrong: then it starts none of the others.
void spoil() { (void)trSend(nullptr, 0, trUint8, 0, nullptr, nullptr); }

// Calls that start together at its end. Groups nest: those inside belong to the outermost.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Group& enter() {
    check(trGroupStart());
    // Inside of a persistent operation or another group, the calls are theirs.
    is_outermost_ = current_recording() == nullptr;
    if (is_outermost_) current_recording() = &recording_;
    return *this;
  }

  bool leave(nb::handle type, nb::handle, nb::handle) {
    const bool has_failed = !type.is_none();
    if (has_failed) spoil();
    if (!is_outermost_) {
      const trResult_t code = trGroupEnd();
      if (!has_failed) check(code);
      return false;
    }
    current_recording() = nullptr;
    Recording recording = std::exchange(recording_, Recording());
    trResult_t code = trSuccess;
    {
      BlockingCall blocking(recording.comms.data(), recording.comms.size());
      code = trGroupEnd();
    }
    if (has_failed) return false;
    if (code != trSuccess) {
      const std::string message = trGetLastError(nullptr);
      raise_signals();
      raise(code, message);
    }
    for (nb::object& request : recording.requests) nb::inst_ptr<Request>(request)->mark();
    return false;
  }

 private:
  Recording recording_;
  bool is_outermost_ = false;
};

// Calls that are planned once and started any number of times.
class Persistent {
 public:
  Persistent() = default;
  Persistent(const Persistent&) = delete;
  Persistent& operator=(const Persistent&) = delete;

  ~Persistent() {
    nb::gil_scoped_release release;
    trPersistentDestroy(handle_);
  }

  Persistent& enter() {
    if (handle_ != nullptr || is_open_)
      raise(trInvalidUsage, "Persistent: calls have been kept already; make another treering.Persistent()");
    if (current_recording() != nullptr)
      raise(trInvalidUsage, "Persistent: begun inside of a group; leave the group first");
    check(trPersistentBegin());
    is_open_ = true;
    recording_.keeps = true;
    current_recording() = &recording_;
    return *this;
  }

  bool leave(nb::handle type, nb::handle, nb::handle) {
    current_recording() = nullptr;
    is_open_ = false;
    trResult_t code = trPersistentEnd(&handle_);
    if (!type.is_none()) return false;
    check(code);
    if (recording_.several_streams || (recording_.without_stream && recording_.stream_handle != nullptr))
      refuse("Persistent",
             "its calls name several streams, or some none; one stream for all of them, or none, is wanted");
    return false;
  }

  nb::object start() {
    if (handle_ == nullptr)
      raise(trInvalidUsage, "Persistent.start: no calls are kept; make them in `with persistent:`");
    trResult_t code = trSuccess;
    {
      BlockingCall blocking(recording_.comms.data(), recording_.comms.size());
      code = trPersistentStart(handle_);
    }
    if (code != trSuccess) {
      const std::string message = trGetLastError(nullptr);
      raise_signals();
      raise(code, message);
    }
    if (recording_.stream_handle == nullptr) return nb::none();
    nb::object request = nb::cast(new Request, nb::rv_policy::take_ownership);
    auto* held = nb::inst_ptr<Request>(request);
    Kept kept;
    kept.add(nb::find(this));  // which holds the arrays
    held->hold(recording_.comms.front(), recording_.stream, recording_.stream_handle, std::move(kept), Result());
    held->mark();
    return request;
  }

 private:
  trPersistent_t handle_ = nullptr;
  Recording recording_;
  bool is_open_ = false;
};

}  // namespace

void bind_groups(nb::module_& module) {
  const auto type = nb::arg("type").none(), value = nb::arg("value").none(), trace = nb::arg("traceback").none();
  const nb::sig leave("def __exit__(self, type: typing.Any, value: typing.Any, traceback: typing.Any) -> bool");
  nb::class_<Group>(
      module, "Group",
      "`with treering.Group():` -- the calls inside start together when it is left: sends and receives in "
      "any order, small allreduces fused, one thread for several ranks.\n\n"
      "What they return is filled when the group has been left; requests are good from then on. An "
      "exception inside starts none of them.")
      .def(nb::init<>())
      .def("__enter__", &Group::enter, nb::rv_policy::reference)
      .def("__exit__", &Group::leave, type, value, trace, leave);
  nb::class_<Persistent>(
      module, "Persistent",
      "Calls that are checked and planned once, and started again and again.\n\n"
      "`with treering.Persistent() as step: comm.allreduce(x, out=y)`, then `step.start()`. The calls "
      "name one stream, or none.")
      .def(nb::init<>())
      .def("__enter__", &Persistent::enter, nb::rv_policy::reference)
      .def("__exit__", &Persistent::leave, type, value, trace, leave)
      .def("start", &Persistent::start, nb::sig("def start(self) -> Request | None"),
           "Runs the calls: waits for them without a stream (None), else gives a Request.");
}

}  // namespace treering::python
