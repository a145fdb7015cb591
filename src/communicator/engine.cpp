#include "communicator/engine.h"

#include <unistd.h>

#include <algorithm>

namespace treering {

Engine& Engine::instance() {
  static auto* engine = new Engine;  // never destroyed: its thread runs until the process ends
  return *engine;
}

Engine::StreamId Engine::create_stream() {
  std::lock_guard lock(mutex_);
  streams_[next_stream_];
  return next_stream_++;
}

bool Engine::knows(StreamId stream) {
  std::lock_guard lock(mutex_);
  return streams_.count(stream) != 0;
}

Status Engine::enqueue(StreamId stream, Communicator* communicator, const AllReduceArguments& arguments) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) return {trInvalidArgument, "the stream is unknown or was destroyed"};
  auto request = std::make_shared<Request>(Request{communicator, arguments, stream, false, Backoff()});
  found->second.requests.push_back(request);
  communicators_[communicator].push_back(request);
  communicator->queued.fetch_add(1);
  if (thread_owner_ != getpid()) {
    thread_owner_ = getpid();
    std::thread([this] { loop(); }).detach();
  }
  work_.notify_one();
  return {};
}

Status Engine::synchronize(StreamId stream) {
  std::unique_lock lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) return {trInvalidArgument, "the stream is unknown or was destroyed"};
  // Every request ends by its communicator's deadline at the latest.
  done_.wait(lock, [&] { return found->second.requests.empty(); });
  return std::exchange(found->second.failure, Status());
}

Status Engine::query(StreamId stream) {
  std::lock_guard lock(mutex_);
  auto found = streams_.find(stream);
  if (found == streams_.end()) return {trInvalidArgument, "the stream is unknown or was destroyed"};
  if (!found->second.requests.empty()) return {trInProgress, "the stream has operations under way"};
  return std::exchange(found->second.failure, Status());
}

Status Engine::destroy_stream(StreamId stream) {
  Status status = synchronize(stream);
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
  return status;
}

void Engine::wait_idle(Communicator* communicator) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return communicators_.count(communicator) == 0; });
}

void Engine::forget(Communicator* communicator) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return in_hand_ != communicator; });
  while (communicators_.count(communicator) != 0) {
    auto request = communicators_[communicator].front();
    retire(request, communicator->failure().ok() ? Status(trRemoteError, "the communicator was destroyed")
                                                 : communicator->failure());
  }
}

// With the mutex: the first request of each communicator that is also the first of its stream.
std::vector<std::shared_ptr<Engine::Request>> Engine::runnable() {
  std::vector<std::shared_ptr<Request>> ready;
  for (auto& [communicator, queue] : communicators_)
    if (streams_[queue.front()->stream].requests.front() == queue.front()) ready.push_back(queue.front());
  return ready;
}

// Advances one request; true when it has ended.
bool Engine::step(Request& request, Status* status, bool* moved) {
  Communicator& communicator = *request.communicator;
  if (!request.started) {
    request.started = true;
    *moved = true;
    if (*status = communicator.begin(request.arguments); !status->ok()) return true;
  }
  switch (communicator.advance()) {
    case Communicator::Progress::kDone: *moved = true; return true;
    case Communicator::Progress::kFailed: *status = communicator.failure(); return true;
    case Communicator::Progress::kMoved: *moved = true; return false;
    case Communicator::Progress::kBlocked: break;
  }
  *status = communicator.look_around();
  return !status->ok();
}

void Engine::retire(const std::shared_ptr<Request>& request, Status status) {
  auto& queue = communicators_[request->communicator];
  std::erase(queue, request);
  if (queue.empty()) communicators_.erase(request->communicator);
  Stream& stream = streams_[request->stream];
  std::erase(stream.requests, request);
  if (stream.failure.ok()) stream.failure = std::move(status);
  request->communicator->queued.fetch_sub(1);
  done_.notify_all();
}

void Engine::loop() {
  Backoff backoff;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return !communicators_.empty(); });
    bool moved = false;
    for (const auto& request : runnable()) {
      auto queue = communicators_.find(request->communicator);
      if (queue == communicators_.end() || queue->second.front() != request) continue;  // forgotten meanwhile
      in_hand_ = request->communicator;
      lock.unlock();
      Status status;
      bool ended = step(*request, &status, &moved);
      lock.lock();
      in_hand_ = nullptr;
      if (ended)
        retire(request, std::move(status));
      else
        done_.notify_all();
    }
    lock.unlock();
    if (moved)
      backoff.reset();
    else
      backoff.pause();
    lock.lock();
  }
}

}  // namespace treering
