// SPDX-License-Identifier: Apache-2.0
// WaitSet: what a rank can sleep on instead of polling, until a transport has something for it.
//
//   transports: poll, poll, ... nothing for a while ---> wait(): the core is given away until a descriptor can be read or written
//
// One for a rank. A transport whose polls cost system calls (sockets) adds its descriptors. One that polls memory adds
// none: a rank that uses both sleeps for short times. One that polls memory and can have a descriptor (a completion
// queue) adds a source that is cheap to poll: it is polled for as long as memory is, and then slept on.
//
// A rank that only polls sockets keeps its core busy, and with it the kernel's own work for the network (packets that
// wait for another core's timer or soft interrupt): on a loaded machine a link carries less than half of what it can
// (docs/tcp.md).
//
// Armed before the sleep, as events are edge-triggered: one that came while the rank was polling ends the next wait at
// once, so none is missed between the last poll and the wait. A wait is bounded all the same, as a rank may wait for
// more than descriptors.
//
// Invariant: any thread may call, as a thread may still sleep while another ends the links; no descriptor of its own
// before the first wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace treering {

// Asks a descriptor to become readable, which one of a verbs device does once each time.
class WaitSource {
 public:
  // Takes what made the descriptor readable before, and asks again. What came in between is found by a poll after it.
  virtual void arm() = 0;
  // Whether its polls read memory alone, as those of a completion queue: they go on for as long as those of memory.
  virtual bool is_cheap_to_poll() const { return false; }

 protected:
  ~WaitSource() = default;
};

class WaitSet {
 public:
  enum class For : uint8_t { kInput, kRoom };

  WaitSet() = default;
  ~WaitSet();
  WaitSet(const WaitSet&) = delete;
  WaitSet& operator=(const WaitSet&) = delete;

  // Before the descriptor is closed, forget() is called.
  void add(int fd, For purpose);
  void add(int fd, WaitSource* source);
  // Once it returns, the source is not called any more.
  void forget(int fd);
  // Whether there is nothing to sleep on yet.
  bool empty() const { return size_.load(std::memory_order_relaxed) == 0; }
  // Whether all polls are cheap.
  bool is_cheap_to_poll() const { return dear_.load(std::memory_order_relaxed) == 0; }
  // Before a wait. True: there are sources, so the caller polls once more before it waits.
  bool arm();
  // Returns when a descriptor has something new or the time is over; true: the former.
  bool wait(uint32_t microseconds);

 private:
  void watch(int fd, For purpose) const;
  void count();
  int descriptor();

  std::atomic<size_t> size_{0}, dear_{0};
  std::mutex mutex_;  // of the rest
  int epoll_ = -1;
  std::vector<std::pair<int, For>> streams_;
  std::vector<std::pair<int, WaitSource*>> sources_;
};

}  // namespace treering
