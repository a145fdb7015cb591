// SPDX-License-Identifier: Apache-2.0
// Streams, events and captures of the stand-in for GPUs (cpu_device.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#define TR_EXPORT __attribute__((visibility("default")))

namespace treering::testing {

using Work = std::function<void()>;

// What a graph does is made anew by each of its launches.
struct TR_EXPORT ProgramGraph {
  uint64_t number = 0;
  std::vector<std::function<Work()>> work;
};

// A queue of work and the thread that does it.
class CpuStream {
 public:
  CpuStream() : thread_([this] { loop(); }) {}
  ~CpuStream() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void give(Work work) {
    std::lock_guard lock(mutex_);
    if (captured_ != nullptr) return captured_->work.push_back([work = std::move(work)] { return work; });
    queue_.push_back(std::move(work));
    ++left_;
    changed_.notify_all();
  }
  void give_at_launch(std::function<Work()> make) {
    std::lock_guard lock(mutex_);
    captured_->work.push_back(std::move(make));
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
  }
  bool is_done() const { return left_.load(std::memory_order_acquire) == 0; }  // asked all the time: takes no lock
  void capture(ProgramGraph* graph) {
    std::lock_guard lock(mutex_);
    captured_ = graph;
  }
  ProgramGraph* captured() {
    std::lock_guard lock(mutex_);
    return captured_;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Work work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      --left_;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::atomic<size_t> left_{0};
  bool ended_ = false;
  ProgramGraph* captured_ = nullptr;
  std::thread thread_;
};

// Captures that have not ended, by number, with the streams that are in them.
struct Capture {
  ProgramGraph* graph;
  std::vector<CpuStream*> streams;
};
inline std::mutex captures_mutex;
inline std::map<uint64_t, Capture>& captures() {
  static auto* map = new std::map<uint64_t, Capture>;
  return *map;
}
inline bool join_capture(uint64_t number, CpuStream* stream) {
  std::lock_guard lock(captures_mutex);
  const auto found = captures().find(number);
  if (found == captures().end()) return false;
  stream->capture(found->second.graph);
  found->second.streams.push_back(stream);
  return true;
}

struct CpuEvent {
  std::atomic<uint64_t> capture{0};  // that it was recorded in
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, completed = 0;
};
inline void complete(CpuEvent& event, uint64_t mark) {
  std::lock_guard lock(event.mutex);
  event.completed = std::max(event.completed, mark);
  event.changed.notify_all();
}
inline void wait_until(CpuEvent& event, uint64_t mark) {
  std::unique_lock lock(event.mutex);
  event.changed.wait(lock, [&] { return event.completed >= mark; });
}

}  // namespace treering::testing
