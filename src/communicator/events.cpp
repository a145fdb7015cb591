// Events: marks in streams.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "communicator/engine.h"

namespace treering {
namespace {

void set_readable(int descriptor, bool readable) {
  if (descriptor < 0) return;
  uint64_t value = 1;
  // A full or an empty counter is what is wanted anyway: nothing to do about EAGAIN.
  ssize_t done = readable ? write(descriptor, &value, sizeof value) : read(descriptor, &value, sizeof value);
  (void)done;
}

}  // namespace

Status Engine::unknown_event() const {
  return {trInvalidUsage, "event is not an event of trEventCreate, or was destroyed"};
}

EventId Engine::create_event() {
  std::lock_guard lock(mutex_);
  events_[next_id_];
  return next_id_++;
}

void Engine::complete(EventId id, uint64_t mark) {
  auto found = events_.find(id);
  if (found == events_.end()) return;
  Event& event = found->second;
  event.completed = std::max(event.completed, mark);
  if (event.completed == event.recorded) set_readable(event.descriptor, true);
  done_.notify_all();
}

Status Engine::record(EventId id, StreamId stream) {
  auto task = std::make_unique<Task>();
  {
    std::lock_guard lock(mutex_);
    auto found = events_.find(id);
    if (found == events_.end()) return unknown_event();
    if (stream != 0 && streams_.count(stream) == 0) return unknown_stream();
    Event& event = found->second;
    if (event.completed == event.recorded) set_readable(event.descriptor, false);
    task->mark = ++event.recorded;
    // Calls without a stream have ended when they return.
    if (stream == 0 || streams_[stream].first == nullptr) {
      complete(id, task->mark);
      return {};
    }
  }
  task->kind = Task::Kind::kRecord;
  task->stream = stream;
  task->event = id;
  TR_RETURN_IF_ERROR(enqueue(task.get()));
  (void)task.release();
  return {};
}

Status Engine::wait_event(StreamId stream, EventId id) {
  if (stream == 0) return synchronize_event(id);
  auto task = std::make_unique<Task>();
  {
    std::lock_guard lock(mutex_);
    auto found = events_.find(id);
    if (found == events_.end()) return unknown_event();
    if (streams_.count(stream) == 0) return unknown_stream();
    if (found->second.completed == found->second.recorded) return {};
    task->mark = found->second.recorded;
  }
  task->kind = Task::Kind::kWait;
  task->stream = stream;
  task->event = id;
  TR_RETURN_IF_ERROR(enqueue(task.get()));
  (void)task.release();
  return {};
}

Status Engine::query_event(EventId id) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event();
  if (found->second.completed == found->second.recorded) return {};
  return {trInProgress, "the event's mark is not complete"};
}

Status Engine::synchronize_event(EventId id) {
  std::unique_lock lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event();
  const uint64_t mark = found->second.recorded;
  // Ends: every operation before the mark ends by its communicator's deadline.
  done_.wait(lock, [&] {
    found = events_.find(id);
    return found == events_.end() || found->second.completed >= mark;
  });
  return {};
}

Status Engine::event_descriptor(EventId id, int* descriptor) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event();
  Event& event = found->second;
  if (event.descriptor < 0) {
    event.descriptor = eventfd(event.completed == event.recorded, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event.descriptor < 0) return {trSystemError, std::string("eventfd: ") + std::strerror(errno)};
  }
  *descriptor = event.descriptor;
  return {};
}

Status Engine::expect(EventId id) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event();
  ++found->second.recorded;
  return {};
}

// Marks that are still in streams find the event gone and are nothing then; waits for it end.
Status Engine::destroy_event(EventId id) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event();
  if (found->second.descriptor >= 0) close(found->second.descriptor);
  events_.erase(found);
  done_.notify_all();
  work_.notify_one();
  return {};
}

}  // namespace treering
