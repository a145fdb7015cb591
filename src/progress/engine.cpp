// SPDX-License-Identifier: Apache-2.0
#include "progress/engine.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>

#include "communicator/idle_links.h"
#include "core/background_thread.h"

namespace treering {

namespace {

std::atomic<Engine*> current{nullptr};  // never destroyed: its thread runs until the process ends

}  // namespace

Engine* Engine::make_first() {
  current = new Engine;
  pthread_atfork(begin_fork, end_fork_in_parent, end_fork_in_child);
  return current;
}

Engine& Engine::instance() {
  [[maybe_unused]] static Engine* const first = make_first();
  return *current.load(std::memory_order_acquire);
}

void Engine::begin_fork() { current.load()->mutex_.lock(); }

void Engine::end_fork_in_parent() { current.load()->mutex_.unlock(); }

// The parent's thread, which waits on the condition variables, is not here, and what the streams hold is the parent's.
void Engine::end_fork_in_child() {
  const Engine& parent = *current.load();
  auto* own = new Engine;
  own->inherited_ = parent.inherited_;
  for (const auto& [id, stream] : parent.streams_) own->inherited_.insert(id);
  for (const auto& [id, event] : parent.events_) own->inherited_.insert(id);
  own->next_id_ = parent.next_id_;
  current = own;
}

Status Engine::inherited(const char* what, uint64_t id) const {
  return {trInvalidUsage,
          fmt::format("{} {:#x} belongs to the process that this one was forked from; make one after the "
                      "fork",
                      what, id)};
}

Status Engine::unknown_stream(StreamId stream) const {
  if (inherited_.count(stream) != 0) return inherited("stream", stream);
  return {trInvalidUsage, "stream is not a stream of trStreamCreate, or was destroyed"};
}

StreamId Engine::create_stream() {
  std::lock_guard lock(mutex_);
  streams_[next_id_];
  return next_id_++;
}

Status Engine::check_stream(StreamId stream) {
  std::lock_guard lock(mutex_);
  return streams_.count(stream) != 0 ? Status() : unknown_stream(stream);
}

namespace {

constexpr size_t kEngineStackBytes = 2 << 20;  // callbacks and reductions of the user run on it
// While it waits the thread leaves its core to the computation that it runs beside: it yields some 50 us and then
// sleeps.
constexpr uint32_t kYieldsBesideComputation = 100;

// A thread that seldom runs long is to run at once when it wakes, although another computes on its core. Linux (6.12
// and later) lets a thread ask for short slices and prefers it then; older kernels ignore that.
void prefer_promptness() {
  struct Attributes {  // struct sched_attr of the kernel, which the C library does not declare
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes{};
  // A wish: without it nothing is wrong. A process that has chosen another policy keeps it.
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 && attributes.policy == SCHED_OTHER) {
    attributes.runtime_ns = 100'000;
    (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
  }
  (void)prctl(PR_SET_TIMERSLACK, 1'000UL, 0UL, 0UL, 0UL);
}

}  // namespace

Status Engine::ensure_thread() {
  if (has_thread_) return {};
  if (!start_background_thread("treering-engine", kEngineStackBytes, [this] { loop(); }))
    return {trSystemError, "the thread of the streams could not be started (too many threads? see ulimit -u)"};
  has_thread_ = true;
  return {};
}

Status Engine::enqueue(StreamId stream, Communicator* communicator, Operation operation) {
  return enqueue_operation(stream, communicator, std::move(operation), nullptr, false);
}

Status Engine::enqueue_passing(StreamId stream, Communicator* communicator, Operation operation) {
  return enqueue_operation(stream, communicator, std::move(operation), nullptr, true);
}

Status Engine::enqueue_operation(StreamId stream, Communicator* communicator, Operation operation,
                                 std::shared_ptr<Mark> gate, bool passes) {
  auto task = std::make_unique<Task>();
  task->stream = stream;
  task->communicator = communicator;
  task->operation = std::move(operation);
  task->mark = std::move(gate);
  task->passes = passes;
  TR_RETURN_IF_ERROR(enqueue(task.get()));
  (void)task.release();
  return {};
}

// The other ranks have the operation under way, and wait for this one.
Status Engine::refuse(Communicator* communicator, const Status& reason) {
  if (communicator == nullptr) return reason;
  const Status status(reason.code(),
                      fmt::format("{}: {}", communicator->describe(communicator->rank()), reason.message()));
  communicator->fail_everywhere(status);
  return status;
}

Status Engine::enqueue(Task* task) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(task->stream);
  if (found == streams_.end()) return unknown_stream(task->stream);
  if (const Status started = ensure_thread(); !started.ok()) return refuse(task->communicator, started);
  // What may take memory comes first: without it nothing has been queued, and the thread of the streams takes none.
  Queue* const queue = task->kind == Task::Kind::kOperation ? &queues_[task->communicator] : nullptr;
  if (queue != nullptr && queue->first == nullptr) {
    active_.reserve(active_.size() + 1);
    larger_batch_.reserve(active_.size() + 1);
  }
  task->engine = this;
  task->queued = true;
  task->started = false;
  task->backoff.reset();
  task->next_in_stream = task->next_on_communicator = nullptr;
  Stream& stream = found->second;
  (stream.first == nullptr ? stream.first : stream.last->next_in_stream) = task;
  stream.last = task;
  ++tasks_;
  if (queue != nullptr) {
    if (queue->first == nullptr) active_.push_back(task->communicator);
    Task* before = task->passes ? queue->first : nullptr;
    Task* previous = before == nullptr ? queue->last : nullptr;
    while (before != nullptr && (before->mark == nullptr || before->mark->complete))
      previous = std::exchange(before, before->next_on_communicator);
    task->next_on_communicator = before;
    (previous == nullptr || queue->first == nullptr ? queue->first : previous->next_on_communicator) = task;
    if (before == nullptr) queue->last = task;
    task->communicator->count_queued(1);
  }
  work_.notify_one();
  return {};
}

Status Engine::synchronize(StreamId stream) {
  std::unique_lock lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) return unknown_stream(stream);
  // Every operation ends by its communicator's deadline at the latest.
  done_.wait(lock, [&] { return found->second.first == nullptr; });
  return std::exchange(found->second.failure, Status());
}

Status Engine::query(StreamId stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) return unknown_stream(stream);
  if (found->second.first != nullptr) return {trInProgress, "the stream has operations under way"};
  return std::exchange(found->second.failure, Status());
}

Status Engine::destroy_stream(StreamId stream) {
  Status status = synchronize(stream);
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
  return status;
}

Status Engine::add_callback(StreamId stream, trCallback callback, void* context) {
  auto task = std::make_unique<Task>();
  task->kind = Task::Kind::kCallback;
  task->stream = stream;
  task->callback = callback;
  task->context = context;
  TR_RETURN_IF_ERROR(enqueue(task.get()));
  (void)task.release();
  return {};
}

void Engine::wait(const Task& task) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return task.engine != this || !task.queued; });
}

bool Engine::is_queued(const Task& task) {
  std::lock_guard lock(mutex_);
  return task.engine == this && task.queued;
}

void Engine::wait_idle(Communicator* communicator) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] {
    const auto found = queues_.find(communicator);
    return found == queues_.end() || found->second.first == nullptr;
  });
}

void Engine::forget(Communicator* communicator) {
  std::unique_lock lock(mutex_);
  ++forgetting_;
  done_.wait(lock, [&] { return in_hand_ != communicator; });
  --forgetting_;
  const auto found = queues_.find(communicator);
  if (found == queues_.end()) return;
  if (found->second.first != nullptr) {  // the user's memory is the user's once its operation is retired
    std::erase(active_, communicator);
    lock.unlock();
    communicator->end_links();
    lock.lock();
  }
  Status reason = communicator->failure();
  if (reason.ok()) reason = {trRemoteError, "the communicator was destroyed"};
  while (found->second.first != nullptr) retire(found->second.first, reason);
  queues_.erase(found);
}

// Advances one operation; true when it has ended.
bool Engine::step(Task* task, Status* status, bool* moved) try {
  Communicator& communicator = *task->communicator;
  if (!task->started) {
    task->started = true;
    *moved = true;
    if (*status = communicator.begin(task->operation); !status->ok()) return true;
  }
  switch (communicator.advance()) {
    case Progress::kDone:
      *moved = true;
      return true;
    case Progress::kDiffers:
    case Progress::kFailed:
      *status = communicator.failure();
      return true;
    case Progress::kMoved:
      *moved = true;
      return false;
    case Progress::kBlocked:
      break;
  }
  *status = communicator.poll_failures();
  return !status->ok();
} catch (const std::bad_alloc&) {
  *status = out_of_memory();  // only the words of a failure are missing
  return true;
}

// Takes a task out of its queues. Operations are the first of their communicator; only forget() takes one that is not
// the first of its stream.
void Engine::retire(Task* task, Status status) {
  if (task->kind == Task::Kind::kOperation) {
    Queue& queue = queues_[task->communicator];
    queue.first = task->next_on_communicator;
    if (queue.first == nullptr) std::erase(active_, task->communicator);
    task->communicator->count_queued(-1);
  }
  Stream& stream = streams_[task->stream];
  Task** link = &stream.first;
  Task* previous = nullptr;
  while (*link != task) previous = *link, link = &(*link)->next_in_stream;
  *link = task->next_in_stream;
  if (stream.last == task) stream.last = previous;
  if (stream.failure.ok()) stream.failure = std::move(status);
  --tasks_;
  task->queued = false;
  if (task->owned) delete task;
  done_.notify_all();
}

// Marks and callbacks at the head of streams; true when there was one that could run.
bool Engine::run_marks(std::unique_lock<std::mutex>* lock) {
  bool moved = false;
  for (auto& [id, stream] : streams_) {
    while (stream.first != nullptr && stream.first->kind != Task::Kind::kOperation) {
      Task* task = stream.first;
      if (task->kind == Task::Kind::kCallback) return run_callback(lock, task);
      if (task->kind == Task::Kind::kWait && !task->mark->complete) break;
      if (task->kind == Task::Kind::kRecord) complete(task->event, task->mark);
      retire(task, {});
      moved = true;
    }
  }
  return moved;
}

bool Engine::run_callback(std::unique_lock<std::mutex>* lock, Task* task) {
  trResult_t result = streams_[task->stream].failure.code();
  lock->unlock();
  task->callback(result, task->context);
  lock->lock();
  retire(task, {});
  return true;
}

// The operation of an active communicator that may advance: the first of its communicator and of its stream. Else
// nullptr.
Task* Engine::startable(Communicator* communicator) {
  if (std::find(active_.begin(), active_.end(), communicator) == active_.end()) return nullptr;
  Task* task = queues_[communicator].first;
  return streams_[task->stream].first == task ? task : nullptr;
}

void Engine::loop() {
  prefer_promptness();
  Backoff backoff({.yields = kYieldsBesideComputation});
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return tasks_ != 0; });
    bool moved = run_marks(&lock);
    batch_.clear();
    if (batch_.capacity() < active_.size()) batch_.swap(larger_batch_);
    std::shared_ptr<WaitSet> waits;
    for (Communicator* communicator : active_)
      if (startable(communicator) != nullptr) batch_.push_back(communicator);
    for (Communicator* communicator : batch_) {
      // While another one advanced, this one's operation may have been forgotten and others given to streams: what
      // counts is what the queues hold now. Addresses tell nothing, they are used again.
      Task* task = startable(communicator);
      if (task == nullptr) continue;
      in_hand_ = communicator;
      if (batch_.size() == 1) waits = communicator->waits();
      lock.unlock();
      Status status;
      bool ended = step(task, &status, &moved);
      lock.lock();
      in_hand_ = nullptr;
      if (ended)
        retire(task, std::move(status));
      else if (forgetting_ != 0)
        done_.notify_all();
    }
    lock.unlock();
    // Not for long: a new task wakes no thread that sleeps on streams.
    backoff.sleep_on(waits.get(), false);
    if (moved)
      backoff.reset();
    else
      backoff.pause();
    if (batch_.empty())
      IdleLinks::serve();  // what the tasks wait for may depend on them; an operation's step serves them
    lock.lock();
  }
}

}  // namespace treering
