// SPDX-License-Identifier: Apache-2.0
// What an operation gives back, and who ends it.
//
//   the thread that moves data ---> CollectiveWork::end(): wait() returns
//                              '--> Finisher: futures and their continuations, and the end of the tensors
//
// Continuations and destructors of tensors may take long, or wait for the interpreter, for which the thread that moves
// data must never wait. So they run on a thread of their own.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace treering::pytorch {

// What a program calls, for messages, the profiler and the work.
struct Call {
  const char* title;  // "treering:all_reduce"
  c10d::OpType type;
  bool is_async = true;
  std::chrono::milliseconds timeout{-1};  // of this call alone; not above 0: that of the group
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  bool is_nested = false;  // the future's value is a list of lists, as of all_gather

  const char* name() const;  // "all_reduce"
};

class CollectiveWork final : public c10d::Work {
 public:
  CollectiveWork(int rank, Call call);

  // Ends it, once; an exception makes it fail. The caller hands the last reference to the Finisher.
  void end(std::exception_ptr exception);
  // Completes the future, if it was asked for, and lets go of the inputs.
  void settle();

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override { return call_.outputs; }
  int sourceRank() const override { return source_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  const Call& call() const { return call_; }
  // Whether it ended in time.
  bool wait_until_ended(std::chrono::milliseconds timeout);
  void rethrow() const;
  void set_source(int rank) { source_ = rank; }

 private:
  c10::IValue value() const;
  void complete(c10::ivalue::Future* future);

  Call call_;
  int source_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool is_settled_ = false;  // the future is complete, or is being completed
};

// Several works as one.
class JoinedWork final : public c10d::Work {
 public:
  explicit JoinedWork(std::vector<c10::intrusive_ptr<c10d::Work>> works);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// A thread of the process, which is started when it is first needed.
class Finisher {
 public:
  static Finisher& instance();
  void settle(c10::intrusive_ptr<CollectiveWork> work);
  // Does what is there, and ends. What comes later is kept for ever: at the end of the process.
  void stop();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<CollectiveWork>> works_;
  std::thread* thread_ = nullptr;
  int process_ = 0;  // that the thread is of
  bool is_stopped_ = false;
};

}  // namespace treering::pytorch
