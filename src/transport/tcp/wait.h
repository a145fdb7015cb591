// SPDX-License-Identifier: Apache-2.0
// TcpWaitSet: sleeping until something happens on the streams of a rank's TCP links.
//
//   links: poll, poll, ... nothing for a while ---> wait(): the core is given away until a stream can be read or written
//
// A rank that only polls keeps its core busy, and with it the kernel's own work for the network (packets that wait for
// another core's timer or soft interrupt): on a loaded machine a link carries less than half of what it can
// (docs/tcp.md). Edge-triggered: an event that came while the rank was polling ends the next wait at once, so none is
// missed between the last poll and the wait; a wait is bounded all the same, as streams are not all that a rank waits for.
//
// Invariant: any thread may call, as a thread may still sleep while another ends the links; no descriptor before the
// first wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/wait_source.h"

namespace treering {

class TcpWaitSet final : public WaitSource {
 public:
  enum class For : uint8_t { kInput, kRoom };

  TcpWaitSet() = default;
  ~TcpWaitSet() override;
  TcpWaitSet(const TcpWaitSet&) = delete;
  TcpWaitSet& operator=(const TcpWaitSet&) = delete;

  // Before the descriptor is closed, forget() is called.
  void add(int fd, For purpose);
  void forget(int fd);
  bool empty() const override { return size_.load(std::memory_order_relaxed) == 0; }
  // Returns when a stream has something new or the time is over; true: the former.
  bool wait(uint32_t microseconds) override;

 private:
  void watch(int fd, For purpose) const;
  int descriptor();

  std::atomic<size_t> size_{0};
  std::mutex mutex_;  // of the rest
  int epoll_ = -1;
  std::vector<std::pair<int, For>> streams_;
};

}  // namespace treering
