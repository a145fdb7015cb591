// SPDX-License-Identifier: Apache-2.0
// Groups and persistent operations: calls that are collected first.
#include "training.h"

namespace treering::python {
namespace {

// The library has no way to give up a group but a call that is wrong: then it starts none of the others.
void spoil() { (void)trSend(nullptr, 0, trUint8, 0, nullptr, nullptr); }

// What the calling thread's last call of the library said.
Outcome outcome_of(trResult_t code) { return {code, code == trSuccess ? "" : trGetLastError(nullptr)}; }

// First what functions of the program raised, then what handlers of signals raise.
void raise_failure(const Outcome& outcome, const std::vector<nb::object>& operations) {
  Result result;
  result.operations = operations;
  result.raise_failures();
  if (outcome.code == trSuccess) return;
  raise_signals();
  raise(outcome.code, outcome.message);
}

// Ends the library's group, whatever happens: where a handler of a signal raises, without its calls.
Outcome end_group(const std::vector<trComm_t>& comms) {
  try {
    BlockingCall blocking(comms.data(), comms.size());
    return outcome_of(trGroupEnd());
  } catch (...) {
    spoil();
    (void)trGroupEnd();
    throw;
  }
}

// Collects the calls of a thread from enter() to leave(). It keeps its Python object, so that it lives until then.
class Collector {
 public:
  Collector() = default;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

 protected:
  void check_entered(const char* name) const {
    if (!self_.is_valid() || (collects_ && current_recording() != &recording_))
      raise(trInvalidUsage, std::string(name) + ": left by a thread that has not entered it");
  }

  void begin(nb::object self, bool collects) {
    self_ = std::move(self);
    collects_ = collects;
    if (collects) current_recording() = &recording_;
  }

  // The caller holds the object that this gives up.
  nb::object end() {
    if (collects_) current_recording() = nullptr;
    return std::move(self_);
  }

  bool is_entered() const { return self_.is_valid(); }

  Recording recording_;
  bool collects_ = false;

 private:
  nb::object self_;
};

// Calls that start together at its end. Groups nest: those inside belong to the outermost.
class Group : public Collector {
 public:
  Group& enter() {
    if (is_entered())
      raise(trInvalidUsage,
            "Group: it has been entered already; each `with` inside takes a treering.Group() of its own");
    check(trGroupStart());
    // Inside of a persistent operation or another group, the calls are theirs.
    begin(nb::find(this), current_recording() == nullptr);
    return *this;
  }

  bool leave(nb::handle type, nb::handle, nb::handle) {
    check_entered("Group");
    const bool has_failed = !type.is_none();
    if (has_failed) spoil();
    const nb::object self = end();
    if (!collects_) {
      const trResult_t code = trGroupEnd();
      if (!has_failed) check(code);
      return false;
    }
    const Recording recording = std::exchange(recording_, Recording());
    Outcome outcome = end_group(recording.comms);
    if (has_failed) return false;
    // Also where one has failed: others may be under way.
    for (const nb::object& request : recording.requests) {
      const trResult_t marked = nb::inst_ptr<Request>(request)->mark();
      if (outcome.code == trSuccess) outcome = outcome_of(marked);
    }
    raise_failure(outcome, recording.operations);
    return false;
  }
};

// Calls that are planned once and started any number of times.
class Persistent : public Collector {
 public:
  ~Persistent() {
    nb::gil_scoped_release release;
    trPersistentDestroy(handle_);
  }

  Persistent& enter() {
    if (handle_ != nullptr || is_entered())
      raise(trInvalidUsage, "Persistent: calls have been kept already; make another treering.Persistent()");
    if (current_recording() != nullptr)
      raise(trInvalidUsage, "Persistent: begun inside of a group; leave the group first");
    check(trPersistentBegin());
    recording_ = Recording();
    recording_.keeps = true;
    begin(nb::find(this), true);
    return *this;
  }

  bool leave(nb::handle type, nb::handle, nb::handle) {
    check_entered("Persistent");
    const nb::object self = end();
    const Outcome outcome = outcome_of(trPersistentEnd(&handle_));
    const bool has_several =
        recording_.several_streams || (recording_.without_stream && recording_.stream_handle != nullptr);
    const bool has_failed = !type.is_none();
    if (!has_failed && outcome.code == trSuccess && !has_several) return false;
    // Nothing of it is to be started.
    trPersistentDestroy(std::exchange(handle_, nullptr));
    recording_ = Recording();
    if (has_failed) return false;
    raise_failure(outcome, {});
    refuse("Persistent",
           "its calls name several streams, or some none; one stream for all of them, or none, is wanted");
  }

  nb::object start() {
    if (handle_ == nullptr)
      raise(trInvalidUsage, "Persistent.start: no calls are kept; make them in `with persistent:`");
    nb::object request = nb::none();
    if (recording_.stream_handle != nullptr) request = new_request();
    Outcome outcome;
    {
      BlockingCall blocking(recording_.comms.data(), recording_.comms.size());
      outcome = outcome_of(trPersistentStart(handle_));
    }
    if (!request.is_none()) {
      const trResult_t marked = nb::inst_ptr<Request>(request)->mark();
      if (outcome.code == trSuccess) outcome = outcome_of(marked);
      raise_failure(outcome, {});
    } else {
      raise_failure(outcome, recording_.operations);
    }
    return request;
  }

 private:
  nb::object new_request() {
    nb::object request = nb::cast(new Request, nb::rv_policy::take_ownership);
    Kept kept;
    kept.add(nb::find(this));  // which holds the arrays
    Result result;
    result.operations = recording_.operations;
    nb::inst_ptr<Request>(request)->hold(recording_.comms.front(), recording_.stream, recording_.stream_handle,
                                         std::move(kept), std::move(result));
    return request;
  }

  trPersistent_t handle_ = nullptr;
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
      "exception inside starts none of them.\n\n"
      "Results for arrays of JAX are NumPy arrays here, except those of requests.")
      .def(nb::init<>())
      .def("__enter__", &Group::enter, nb::lock_self(), nb::rv_policy::reference)
      .def("__exit__", &Group::leave, nb::lock_self(), type, value, trace, leave);
  nb::class_<Persistent>(
      module, "Persistent",
      "Calls that are checked and planned once, and started again and again.\n\n"
      "`with treering.Persistent() as step: comm.allreduce(x, out=y)`, then `step.start()`. The calls "
      "name one stream, or none.")
      .def(nb::init<>())
      .def("__enter__", &Persistent::enter, nb::lock_self(), nb::rv_policy::reference)
      .def("__exit__", &Persistent::leave, nb::lock_self(), type, value, trace, leave)
      .def("start", &Persistent::start, nb::lock_self(), nb::sig("def start(self) -> Request | None"),
           "Runs the calls: waits for them without a stream (None), else gives a Request.");
}

}  // namespace treering::python
