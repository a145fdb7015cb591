// SPDX-License-Identifier: Apache-2.0
#include "requests.h"

#include <pthread.h>

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
  int process = 0;  // how many forks lie between the program's start and the process that it is of
};

// A forked child has none of its parent's events.
class EventPool {
 public:
  EventPool() { pthread_atfork(lock_for_fork, unlock_in_parent, clear_in_child); }

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
    event.process = process_;
    return event;
  }

  // `is_known`: the program has its descriptor, which must not tell of a later request.
  void give_back(Event event, bool is_known = false) {
    std::lock_guard lock(mutex_);
    if (event.process != process_) return;
    if (!is_known && free_.size() < kMaxFree)
      free_.push_back(event);
    else
      trEventDestroy(event.handle);
  }

 private:
  static void lock_for_fork();
  static void unlock_in_parent();
  static void clear_in_child();

  static constexpr size_t kMaxFree = 64;
  std::mutex mutex_;
  std::vector<Event> free_;
  int process_ = 0;
};

// Never destroyed: a process ends while requests may be under way.
EventPool& events() {
  static EventPool* pool = new EventPool;
  return *pool;
}

void EventPool::lock_for_fork() { events().mutex_.lock(); }

void EventPool::unlock_in_parent() { events().mutex_.unlock(); }

void EventPool::clear_in_child() {
  events().free_.clear();
  ++events().process_;
  events().mutex_.unlock();
}

// Goes back to the pool where it is not kept.
class TakenEvent {
 public:
  TakenEvent() : event_(events().take()) {}
  ~TakenEvent() { events().give_back(event_); }
  TakenEvent(const TakenEvent&) = delete;
  TakenEvent& operator=(const TakenEvent&) = delete;
  trEvent_t handle() const { return event_.handle; }

 private:
  Event event_;
};

using Code = std::shared_ptr<std::atomic<int>>;

}  // namespace

// Shared by the request and, while the call is under way, the library's thread.
struct Request::Part {
  trComm_t comm = nullptr;
  trStream_t handle = nullptr;
  nb::object stream;
  Kept kept;
  Result result;
  Event event = events().take();
  bool is_marked = false, has_ended = false;
  bool is_known = false;  // the event's descriptor, to the program
  int waiting = 0;        // threads that look at the descriptor
  Code code = std::make_shared<std::atomic<int>>(trSuccess);
  std::unique_ptr<Code> for_callback = std::make_unique<Code>(code);

  ~Part() { drop_event(); }
  void drop_event() {
    if (event.handle != nullptr) events().give_back(std::exchange(event, Event()), is_known);
  }
  bool is_complete() const { return is_marked && trEventQuery(event.handle) == trSuccess; }
};

namespace {

std::mutex dropped_mutex;

// Called on the library's thread.
void take_down(trResult_t result, void* context) {
  auto* code = static_cast<Code*>(context);
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

void Stream::wait(trStream_t handle) {
  const TakenEvent event;
  check(trEventRecord(event.handle(), handle));
  int descriptor = -1;
  check(trEventGetFd(event.handle(), &descriptor));
  wait_readable(descriptor, -1);
}

// Functions in Python may run for what came meanwhile: the GIL is free in all of it.
void Stream::synchronize() {
  const trStream_t own = handle("Stream.synchronize");
  wait(own);
  trResult_t code = trSuccess;
  {
    nb::gil_scoped_release release;
    code = trStreamSynchronize(own);
  }
  check(code);
}

bool Stream::query() {
  const trResult_t state = trStreamQuery(handle("Stream.query"));
  if (state == trInProgress) return false;
  check(state);
  return true;
}

void Stream::close() {
  const trStream_t own = handle_;
  if (own == nullptr) return;
  wait(own);
  if (handle_ != own) return;  // another thread was faster
  handle_ = nullptr;
  trResult_t code = trSuccess;
  {
    nb::gil_scoped_release release;
    code = trStreamDestroy(own);
  }
  check(code);
}

void Result::raise_failures() const {
  for (const nb::object& operation : operations) nb::cast<Operation&>(operation).raise_failure();
}

nb::object Result::finished() const {
  raise_failures();
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

trResult_t Request::mark() noexcept {
  trResult_t code = trStreamAddCallback(part_->handle, take_down, part_->for_callback.get());
  if (code == trSuccess) {
    (void)part_->for_callback.release();
    code = trEventRecord(part_->event.handle, part_->handle);
  }
  part_->is_marked = code == trSuccess;
  if (code != trSuccess) (void)new std::shared_ptr<Part>(part_);
  return code;
}

Request::Part& Request::part(const char* call) {
  if (part_ != nullptr && part_->is_marked) return *part_;
  raise(trInvalidUsage, std::string(call) + ": the call was made in a group that has not ended yet; leave the group");
}

namespace {

// The failure of a call of `comm`, where `seen` was the first one of its stream: that may be another communicator's.
// A communicator that was closed meanwhile has no message any more.
Outcome failure_of(trComm_t comm, trResult_t seen) {
  trResult_t state = trSuccess;
  if (trCommGetAsyncError(comm, &state) != trSuccess)
    return {seen, "the communicator was closed while the call was under way"};
  if (state == trSuccess || state == trInProgress) return {};
  return {state, trGetLastError(comm)};
}

}  // namespace

nb::object Request::settle() {
  Part& part = *part_;
  if (!part.has_ended) {
    part.has_ended = true;
    if (!part.is_known && part.waiting == 0) part.drop_event();
    part.kept = {};
  }
  const auto seen = static_cast<trResult_t>(part.code->load());
  part.result.raise_failures();
  const Outcome failure = seen == trSuccess ? Outcome() : failure_of(part.comm, seen);
  if (failure.code == trSuccess) return part.result.finished();
  // Tells the stream that its failure is known, where it has ended.
  trStreamQuery(part.handle);
  raise(failure.code, failure.message);
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
  if (own.has_ended && own.event.handle == nullptr)
    raise(trInvalidUsage, "Request.fileno: the request has ended; wait() gives its result");
  own.is_known = true;
  return descriptor();
}

int Request::descriptor() {
  Event& event = part_->event;
  if (event.descriptor < 0) check(trEventGetFd(event.handle, &event.descriptor));
  return event.descriptor;
}

bool Request::wait_for_end(double seconds) {
  const std::shared_ptr<Part> own = part_;
  const int watched = descriptor();
  ++own->waiting;
  try {
    const bool ended = wait_readable(watched, seconds);
    --own->waiting;
    return ended;
  } catch (...) {
    --own->waiting;
    throw;
  }
}

nb::object Request::wait(nb::object timeout) {
  part("Request.wait");
  const double seconds = timeout.is_none() ? -1 : std::max(0.0, nb::cast<double>(timeout));
  const auto begin = Clock::now();
  while (!has_ended() && Clock::now() - begin < kLookBeforeSleep) {
  }
  if (!has_ended() && !wait_for_end(seconds))
    raise(trTimeout, "Request.wait: the call has not ended within " + std::to_string(seconds) +
                         " s; it goes on, and wait() may be called again");
  return settle();
}

void bind_requests(nb::module_& module) {
  nb::class_<Stream>(module, "Stream",
                     "A queue of calls that run in order, in the background. Give it to a call as `stream=`.\n\n"
                     "A stream is of the process that made it: a forked child makes its own.")
      .def(nb::init<>())
      .def("synchronize", &Stream::synchronize, nb::lock_self(),
           "Waits until every call given to the stream has ended. Raises the first failure since the last wait.")
      .def("query", &Stream::query, nb::lock_self(),
           "True when every call has ended, else False. Raises the first failure, once.")
      .def("close", &Stream::close, nb::lock_self(), "Waits as synchronize(), then releases the stream.");
  nb::class_<Request>(module, "Request",
                      "A call that was given to a stream. `await request` waits in an asyncio loop; its result is that "
                      "of wait().\n\nThe arrays of the call are not to be changed until it has ended.")
      .def("wait", &Request::wait, nb::lock_self(), nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> typing.Any"),
           "Waits until the call has ended, at most `timeout` seconds, and gives its result.\n\n"
           "Raises TimeoutError when the time is over (the call goes on), else the failure of the call.")
      .def("test", &Request::test, nb::lock_self(),
           "True when the call has ended, else False. Raises the failure of the call.")
      .def("fileno", &Request::fileno, nb::lock_self(),
           "A descriptor that poll() shows readable when the call has ended. It is neither read nor closed.")
      .def(
          "__await__",
          [](nb::handle self) { return python_function("treering._async", "ended")(self).attr("__await__")(); },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, typing.Any]"));
}

}  // namespace treering::python
