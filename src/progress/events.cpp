// SPDX-License-Identifier: Apache-2.0
// Events: marks in streams.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "progress/engine.h"

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

Status Engine::unknown_event(EventId event) const {
  if (inherited_.count(event) != 0) return inherited("event", event);
  return {trInvalidUsage, "event is not an event of trEventCreate, or was destroyed"};
}

EventId Engine::create_event() {
  std::lock_guard lock(mutex_);
  events_[next_id_];
  return next_id_++;
}

void Engine::complete(EventId id, const std::shared_ptr<Mark>& mark) {
  mark->complete = true;
  if (auto found = events_.find(id); found != events_.end() && found->second.last == mark)
    set_readable(found->second.descriptor, true);
  done_.notify_all();
}

Status Engine::enqueue_mark(Task::Kind kind, StreamId stream, EventId event, std::shared_ptr<Mark> mark) {
  auto task = std::make_unique<Task>();
  task->kind = kind;
  task->stream = stream;
  task->event = event;
  task->mark = std::move(mark);
  TR_RETURN_IF_ERROR(enqueue(task.get()));
  (void)task.release();
  return {};
}

Status Engine::record(EventId id, StreamId stream) {
  auto mark = std::make_shared<Mark>();
  {
    std::lock_guard lock(mutex_);
    auto found = events_.find(id);
    if (found == events_.end()) return unknown_event(id);
    if (stream != 0 && streams_.count(stream) == 0) return unknown_stream(stream);
    Event& event = found->second;
    if (event.complete()) set_readable(event.descriptor, false);
    event.last = mark;
    // Calls without a stream have ended when they return.
    if (stream == 0 || streams_[stream].first == nullptr) {
      complete(id, mark);
      return {};
    }
  }
  return enqueue_mark(Task::Kind::kRecord, stream, id, std::move(mark));
}

Status Engine::wait_event(StreamId stream, EventId id) {
  if (stream == 0) return synchronize_event(id);
  std::shared_ptr<Mark> mark;
  {
    std::lock_guard lock(mutex_);
    auto found = events_.find(id);
    if (found == events_.end()) return unknown_event(id);
    if (streams_.count(stream) == 0) return unknown_stream(stream);
    if (found->second.complete()) return {};
    mark = found->second.last;
  }
  return enqueue_mark(Task::Kind::kWait, stream, 0, std::move(mark));
}

Status Engine::order(StreamId earlier, StreamId later) {
  auto mark = std::make_shared<Mark>();
  TR_RETURN_IF_ERROR(enqueue_mark(Task::Kind::kRecord, earlier, 0, mark));
  return enqueue_mark(Task::Kind::kWait, later, 0, std::move(mark));
}

Status Engine::query_event(EventId id) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event(id);
  if (found->second.complete()) return {};
  return {trInProgress, "the event's mark is not complete"};
}

Status Engine::synchronize_event(EventId id) {
  std::unique_lock lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event(id);
  const std::shared_ptr<Mark> mark = found->second.last;
  // Ends: every operation before the mark ends by its communicator's deadline.
  done_.wait(lock, [&] { return mark == nullptr || mark->complete; });
  return {};
}

Status Engine::event_descriptor(EventId id, int* descriptor) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event(id);
  Event& event = found->second;
  if (event.descriptor < 0) {
    event.descriptor = eventfd(event.complete(), EFD_CLOEXEC | EFD_NONBLOCK);
    if (event.descriptor < 0) return {trSystemError, std::string("eventfd: ") + std::strerror(errno)};
  }
  *descriptor = event.descriptor;
  return {};
}

EventId Engine::create_gate() {
  std::lock_guard lock(mutex_);
  events_[next_id_].last = std::make_shared<Mark>();
  return next_id_++;
}

Status Engine::enqueue_passable(StreamId stream, Communicator* communicator, Operation operation, EventId gate) {
  std::shared_ptr<Mark> mark;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = events_.find(gate); found != events_.end()) mark = found->second.last;
  }
  return enqueue_operation(stream, communicator, std::move(operation), std::move(mark), false);
}

void Engine::open_gate(EventId gate) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(gate);
  if (found == events_.end()) return;
  complete(gate, found->second.last);
  events_.erase(found);
  work_.notify_one();
}

// Its marks stay in their streams, and what waits for them goes on waiting.
Status Engine::destroy_event(EventId id) {
  std::lock_guard lock(mutex_);
  auto found = events_.find(id);
  if (found == events_.end()) return unknown_event(id);
  if (found->second.descriptor >= 0) close(found->second.descriptor);
  events_.erase(found);
  return {};
}

}  // namespace treering
