// SPDX-License-Identifier: Apache-2.0
#include "communicator.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "operations.h"

namespace treering::python {
namespace {

// All that are open, for the end of the process. Never destroyed: objects may outlive it.
struct Open {
  std::mutex mutex;
  std::set<Communicator*> comms;
};
Open& open_comms() {
  static Open* open = new Open;
  return *open;
}

thread_local Recording* recording = nullptr;

}  // namespace

Communicator::Communicator(trComm_t handle) : handle_(handle) {
  check(trCommRank(handle, &rank_));
  check(trCommCount(handle, &size_));
  std::lock_guard lock(open_comms().mutex);
  open_comms().comms.insert(this);
}

Communicator::~Communicator() {
  {
    std::lock_guard lock(open_comms().mutex);
    open_comms().comms.erase(this);
  }
  end();
}

trComm_t Communicator::handle(const char* call) const {
  const trComm_t handle = handle_.load();
  if (handle == nullptr) raise(trInvalidUsage, std::string(call) + ": the communicator is closed");
  return handle;
}

void Communicator::close() {
  const Recording* group = current_recording();
  if (group != nullptr && std::count(group->comms.begin(), group->comms.end(), handle_.load()) != 0)
    raise(trInvalidUsage, "close: the open group has calls on this communicator; leave the group first");
  end();
}

void Communicator::end() {
  const trComm_t handle = take();
  if (handle == nullptr || leave_to_abandoned_call(handle)) return;
  nb::gil_scoped_release release;
  trCommDestroy(handle);
}

void Communicator::abort() {
  const trComm_t handle = take();
  if (handle == nullptr || leave_to_abandoned_call(handle)) return;
  nb::gil_scoped_release release;
  trCommAbort(handle);
}

void close_all() {
  std::vector<trComm_t> handles;
  {
    std::lock_guard lock(open_comms().mutex);
    for (Communicator* comm : open_comms().comms) handles.push_back(comm->take());
  }
  nb::gil_scoped_release release;
  for (trComm_t handle : handles)
    if (handle != nullptr && !leave_to_abandoned_call(handle)) trCommDestroy(handle);
}

nb::object own_communicator(nb::handle type, trComm_t handle) {
  nb::object object = nb::inst_alloc(type);
  new (nb::inst_ptr<Communicator>(object)) Communicator(handle);
  nb::inst_mark_ready(object);
  return object;
}

Recording*& current_recording() { return recording; }

Call::Call(Communicator& comm, const char* name, nb::handle stream)
    : comm_(comm), name_(name), handle_(comm.handle(name)), stream_(stream) {
  if (stream.is_none()) return;
  Stream* given = nullptr;
  if (!nb::try_cast(stream, given))
    refuse_type(name, "stream is " + kind_of(stream) + "; a treering.Stream or None is wanted");
  stream_handle_ = given->handle(name);
}

void* Call::output(nb::handle out, nb::handle like, trDataType_t type, const std::vector<int64_t>& shape,
                   const char* wanted, const View* in) {
  if (in != nullptr && out.is(like) && in->writable()) {
    result_.value = nb::borrow(out);
    return in->data();
  }
  if (out.is_none()) {
    result_.value = new_array(like, type, shape);
    result_.like = nb::borrow(like);
    kept_.add(view_of(result_.value, Access::kWrite, name_, "the result"));
    return kept_.views.back().data();
  }
  View view = view_of(out, Access::kWrite, name_, "out");
  if (view.type() != type)
    refuse_type(name_, "out has dtype " + data_type(view.type()).name + "; " + data_type(type).name +
                           " is wanted, as x has it");
  size_t count = 1;
  for (int64_t extent : shape) count *= static_cast<size_t>(extent);
  if (view.count() != count)
    refuse(name_, "out is " + view.text() + ", " + std::to_string(view.count()) + " elements; " +
                      std::to_string(count) + " are wanted, " + wanted);
  result_.value = nb::borrow(out);
  void* address = view.data();
  kept_.add(std::move(view));
  return address;
}

trRedOp_t Call::operation(nb::handle op) {
  trRedOp_t found = trSum;
  if (PyUnicode_Check(op.ptr()) != 0) {
    const char* name = PyUnicode_AsUTF8(op.ptr());
    if (name == nullptr) throw nb::python_error();
    if (!op_of_name(name, &found))
      refuse(name_, std::string("op is '") + name + "'; one of " + names_of_ops() + ", or an Operation, is wanted");
    return found;
  }
  Operation* made = nullptr;
  if (!nb::try_cast(op, made))
    refuse_type(name_, "op is " + kind_of(op) + "; one of " + names_of_ops() + ", or an Operation, is wanted");
  if (made->comm_handle() != handle_) refuse(name_, "op was made on another communicator; make it on this one");
  result_.operations.push_back(nb::borrow(op));
  kept_.add(op);
  return made->op();
}

void Call::fail(trResult_t code) {
  const std::string message = trGetLastError(nullptr);
  // First what a function of the program raised: Ctrl-C in it has revoked the communicator.
  result_.raise_failures();
  // Where a signal revoked the communicator, the exception of its handler.
  raise_signals();
  raise(code, message);
}

void Call::prepare() {
  if (stream_handle_ == nullptr || (current_recording() != nullptr && current_recording()->keeps)) return;
  request_ = nb::cast(new Request, nb::rv_policy::take_ownership);
  nb::inst_ptr<Request>(request_)->hold(handle_, nb::borrow(stream_), stream_handle_, std::move(kept_),
                                        std::move(result_));
}

nb::object Call::started() {
  if (current_recording() != nullptr) return record(current_recording());
  if (stream_handle_ == nullptr) return result_.finished();
  check(nb::inst_ptr<Request>(request_)->mark());
  return request_;
}

// The call begins with the end of the group: until then the recording keeps its arrays, and its request has no mark.
nb::object Call::record(Recording* into) {
  into->comms.push_back(handle_);
  into->kept.add(nb::find(&comm_));
  if (request_.is_valid()) {
    into->requests.push_back(request_);
  } else {
    into->kept.append(std::move(kept_));
    for (const nb::object& operation : result_.operations) into->operations.push_back(operation);
  }
  if (stream_handle_ == nullptr) {
    into->without_stream = true;
    return result_.value;
  }
  if (into->stream_handle != nullptr && into->stream_handle != stream_handle_) into->several_streams = true;
  into->stream = nb::borrow(stream_);
  into->stream_handle = stream_handle_;
  return request_.is_valid() ? request_ : result_.value;
}

}  // namespace treering::python
