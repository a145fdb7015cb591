// SPDX-License-Identifier: Apache-2.0
#include "requests.h"

#include <chrono>
#include <mutex>

#include "errors.h"
#include "operations.h"
#include "waits.h"

namespace treering::python {
namespace {

using Clock = std::chrono::steady_clock;
// A wait looks at the event so long before it sleeps: waking up takes longer than many operations.
constexpr auto kLookBeforeSleep = std::chrono::microseconds(20);

// Events with their descriptors, which are kept for later requests.
struct Event {
  trEvent_t handle = nullptr;
  int descriptor = -1;
};

class EventPool {
 public:
  Event take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Event event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    Event event;
    check(trEventCreate(&event.handle));
    return event;
  }

  void give_back(Event event) {
    std::lock_guard lock(mutex_);
    if (free_.size() < kMaxFree)
      free_.push_back(event);
    else
      trEventDestroy(event.handle);
  }

 private:
  static constexpr size_t kMaxFree = 64;
  std::mutex mutex_;
  std::vector<Event> free_;
};

// Never destroyed: a process ends while requests may be under way.
EventPool& events() {
  static EventPool* pool = new EventPool;
  return *pool;
}

}  // namespace

// Shared by the request and, while the call is under way, the library's thread.
struct Request::Part {
  trComm_t comm = nullptr;
  trStream_t handle = nullptr;
  nb::object stream;
  Kept kept;
  Result result;
  Event event;
  bool is_marked = false, has_ended = false;
  std::shared_ptr<std::atomic<int>> code = std::make_shared<std::atomic<int>>(trSuccess);

  bool is_complete() const { return is_marked && trEventQuery(event.handle) == trSuccess; }
};

namespace {

std::mutex dropped_mutex;

// Called on the library's thread.
void take_down(trResult_t result, void* context) {
  auto* code = static_cast<std::shared_ptr<std::atomic<int>>*>(context);
  (*code)->store(result);
  delete code;
}

}  // namespace

Stream::Stream() { check(trStreamCreate(&handle_)); }

Stream::~Stream() {
  // Requests hold their stream, so that it has nothing left to wait for but calls that were not ours.
  if (handle_ == nullptr) return;
  nb::gil_scoped_release release;
  trStreamDestroy(handle_);
}

trStream_t Stream::handle(const char* call) const {
  if (handle_ == nullptr) refuse(call, "stream is closed; make another one with treering.Stream()");
  return handle_;
}

void Stream::synchronize() {
  const Event event = events().take();
  trResult_t recorded = trEventRecord(event.handle, handle("Stream.synchronize"));
  int descriptor = -1;
  if (recorded == trSuccess) recorded = trEventGetFd(event.handle, &descriptor);
  check(recorded);
  wait_readable(descriptor, -1);
  events().give_back(event);
  check(trStreamSynchronize(handle_));
}

bool Stream::query() {
  const trResult_t state = trStreamQuery(handle("Stream.query"));
  if (state == trInProgress) return false;
  check(state);
  return true;
}

void Stream::close() {
  if (handle_ == nullptr) return;
  synchronize();
  check(trStreamDestroy(std::exchange(handle_, nullptr)));
}

nb::object Result::finished() const {
  if (operation.is_valid()) nb::cast<Operation&>(operation).raise_failure();
  return like.is_valid() ? finished_array(value, like) : value;
}

void Kept::append(Kept other) {
  for (View& view : other.views) views.push_back(std::move(view));
  for (nb::object& object : other.objects) objects.push_back(std::move(object));
}

namespace {

using Dropped = std::vector<std::shared_ptr<void>>;
Dropped& dropped() {
  static Dropped* list = new Dropped;
  return *list;
}
std::atomic<size_t> dropped_count{0};

}  // namespace

Request::~Request() {
  if (part_ == nullptr || part_->has_ended || !part_->is_marked) return;
  std::lock_guard lock(dropped_mutex);
  dropped().push_back(std::move(part_));
  dropped_count = dropped().size();
}

void sweep_dropped_requests() {
  if (dropped_count.load(std::memory_order_relaxed) == 0) return;
  Dropped ended;
  std::unique_lock lock(dropped_mutex);
  std::erase_if(dropped(), [&](std::shared_ptr<void>& held) {
    auto* part = static_cast<Request::Part*>(held.get());
    if (!part->is_complete()) return false;
    events().give_back(part->event);
    ended.push_back(std::move(held));
    return true;
  });
  dropped_count = dropped().size();
  lock.unlock();
  // What they hold may run Python code when it is let go of: not under the lock.
}

void Request::hold(trComm_t comm, nb::object stream, trStream_t handle, Kept kept, Result result) {
  part_ = std::make_shared<Part>();
  part_->comm = comm;
  part_->stream = std::move(stream);
  part_->handle = handle;
  part_->kept = std::move(kept);
  part_->result = std::move(result);
}

void Request::mark() {
  part_->event = events().take();
  auto* code = new std::shared_ptr<std::atomic<int>>(part_->code);
  const trResult_t added = trStreamAddCallback(part_->handle, take_down, code);
  if (added != trSuccess) delete code;
  check(added);
  check(trEventRecord(part_->event.handle, part_->handle));
  part_->is_marked = true;
}

Request::Part& Request::part(const char* call) {
  if (part_ != nullptr && part_->is_marked) return *part_;
  raise(trInvalidUsage, std::string(call) + ": the call was made in a group that has not ended yet; leave the group");
}

namespace {

// A communicator that was closed meanwhile has none any more.
std::string message_of(trComm_t comm) {
  trResult_t state = trSuccess;
  const bool is_open = trCommGetAsyncError(comm, &state) == trSuccess;
  return is_open ? trGetLastError(comm) : "the communicator was closed while the call was under way";
}

}  // namespace

nb::object Request::settle() {
  Part& part = *part_;
  if (!part.has_ended) {
    part.has_ended = true;
    events().give_back(part.event);
    part.kept = {};
  }
  const auto code = static_cast<trResult_t>(part.code->load());
  if (code == trSuccess) return part.result.finished();
  const std::string message = message_of(part.comm);
  // Tells the stream that its failure is known, where it has ended: it would be that of later requests.
  trStreamQuery(part.handle);
  raise(code, message);
}

bool Request::has_ended() { return part_->has_ended || part_->is_complete(); }

bool Request::test() {
  part("Request.test");
  if (!has_ended()) return false;
  settle();
  return true;
}

int Request::fileno() {
  Part& own = part("Request.fileno");
  if (own.has_ended) raise(trInvalidUsage, "Request.fileno: the request has ended; wait() gives its result");
  if (own.event.descriptor < 0) check(trEventGetFd(own.event.handle, &own.event.descriptor));
  return own.event.descriptor;
}

nb::object Request::wait(nb::object timeout) {
  part("Request.wait");
  const double seconds = timeout.is_none() ? -1 : std::max(0.0, nb::cast<double>(timeout));
  const auto begin = Clock::now();
  while (!has_ended() && Clock::now() - begin < kLookBeforeSleep) {
  }
  if (!has_ended() && !wait_readable(fileno(), seconds))
    raise(trTimeout, "Request.wait: the call has not ended within " + std::to_string(seconds) +
                         " s; it goes on, and wait() may be called again");
  return settle();
}

void bind_requests(nb::module_& module) {
  nb::class_<Stream>(module, "Stream",
                     "A queue of calls that run in order, in the background. Give it to a call as `stream=`.\n\n"
                     "A stream is of the process that made it: a forked child makes its own.")
      .def(nb::init<>())
      .def("synchronize", &Stream::synchronize,
           "Waits until every call given to the stream has ended. Raises the first failure since the last wait.")
      .def("query", &Stream::query, "True when every call has ended, else False. Raises the first failure, once.")
      .def("close", &Stream::close, "Waits as synchronize(), then releases the stream.");
  nb::class_<Request>(module, "Request",
                      "A call that was given to a stream. `await request` waits in an asyncio loop; its result is that "
                      "of wait().\n\nThe arrays of the call are not to be changed until it has ended.")
      .def("wait", &Request::wait, nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> typing.Any"),
           "Waits until the call has ended, at most `timeout` seconds, and gives its result.\n\n"
           "Raises TimeoutError when the time is over (the call goes on), else the failure of the call.")
      .def("test", &Request::test, "True when the call has ended, else False. Raises the failure of the call.")
      .def("fileno", &Request::fileno,
           "A descriptor that poll() shows readable when the call has ended. It is neither read nor closed.")
      .def(
          "__await__",
          [](nb::handle self) { return python_function("treering._async", "ended")(self).attr("__await__")(); },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"));
}

}  // namespace treering::python
