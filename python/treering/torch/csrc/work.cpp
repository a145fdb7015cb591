// SPDX-License-Identifier: Apache-2.0
#include "work.h"

#include <ATen/core/ivalue_inl.h>
#include <unistd.h>

#include <utility>

#include "errors.h"

namespace treering::pytorch {

const char* Call::name() const { return title + sizeof "treering:" - 1; }

CollectiveWork::CollectiveWork(int rank, Call call)
    : Work(rank, call.type, call.title, std::optional<std::vector<at::Tensor>>(call.inputs)), call_(std::move(call)) {}

void CollectiveWork::end(std::exception_ptr exception) { finish(std::move(exception)); }

void CollectiveWork::settle() {
  std::unique_lock lock(mutex_);
  const std::vector<at::Tensor> inputs = std::exchange(call_.inputs, {});
  if (future_ == nullptr || is_settled_) return lock.unlock();  // the tensors end without the lock
  is_settled_ = true;
  const auto future = future_;
  lock.unlock();
  complete(future.get());
}

bool CollectiveWork::wait_until_ended(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return completed_; };
  if (timeout > kNoTimeout) return cv_.wait_for(lock, timeout, ended);
  cv_.wait(lock, ended);
  return true;
}

void CollectiveWork::rethrow() const {
  std::unique_lock lock(mutex_);
  const std::exception_ptr exception = exception_;
  lock.unlock();
  if (exception != nullptr) std::rethrow_exception(exception);
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  const bool has_own = timeout > kNoTimeout;
  const auto limit = has_own ? timeout : call_.timeout;
  if (!wait_until_ended(limit))
    raise(c10::str(call_.name(), ": has not ended after ", limit.count(), " ms, the timeout of ",
                   has_own ? "wait()" : "this call", "; it goes on"));
  rethrow();
  return true;
}

c10::IValue CollectiveWork::value() const {
  if (!call_.is_nested) return call_.outputs;
  c10::List<c10::List<at::Tensor>> lists;
  lists.push_back(c10::List<at::Tensor>(call_.outputs));
  return lists;
}

c10::intrusive_ptr<c10::ivalue::Future> CollectiveWork::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_ == nullptr) {
    c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
    if (call_.is_nested) type = c10::ListType::create(type);
    future_ = c10::make_intrusive<c10::ivalue::Future>(type);
  }
  const auto future = future_;
  const bool completes = completed_ && !std::exchange(is_settled_, is_settled_ || completed_);
  lock.unlock();
  if (completes) complete(future.get());
  return future;
}

void CollectiveWork::complete(c10::ivalue::Future* future) {
  if (exception_ != nullptr)
    future->setError(exception_);
  else
    future->markCompleted(value());
}

JoinedWork::JoinedWork(std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool JoinedWork::isCompleted() {
  for (const auto& work : works_)
    if (!work->isCompleted()) return false;
  return true;
}

bool JoinedWork::isSuccess() const { return exception() == nullptr; }

std::exception_ptr JoinedWork::exception() const {
  for (const auto& work : works_)
    if (std::exception_ptr found = work->exception(); found != nullptr) return found;
  return nullptr;
}

bool JoinedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

std::vector<at::Tensor> JoinedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_)
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> JoinedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

Finisher& Finisher::instance() {
  static auto* finisher = new Finisher;  // threads that are there at the end of the process may use it
  return *finisher;
}

void Finisher::settle(c10::intrusive_ptr<CollectiveWork> work) {
  std::lock_guard lock(mutex_);
  works_.push_back(std::move(work));
  if (is_stopped_) return;
  if (thread_ == nullptr || process_ != getpid()) {
    // A forked child has the parent's thread by name alone, and leaves it alone.
    process_ = getpid();
    thread_ = new std::thread([this] { run(); });
  }
  changed_.notify_one();
}

void Finisher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !works_.empty() || is_stopped_; });
    if (works_.empty()) return;
    auto work = std::move(works_.front());
    works_.pop_front();
    lock.unlock();
    work->settle();
    work.reset();
    lock.lock();
  }
}

void Finisher::stop() {
  std::unique_lock lock(mutex_);
  is_stopped_ = true;
  std::thread* thread = std::exchange(thread_, nullptr);
  const bool is_own = process_ == getpid();
  lock.unlock();
  if (thread == nullptr || !is_own) return;
  changed_.notify_one();
  thread->join();
  delete thread;
}

}  // namespace treering::pytorch
