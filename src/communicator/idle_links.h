// SPDX-License-Identifier: Apache-2.0
// IdleLinks: who looks after the links of communicators that are in no call.
//
// A call over TCP ends once all that it sent is in the kernel. If the connection breaks then, this rank alone can send
// again what the peer has not got. The peer waits for it, while this rank may wait in a call on another communicator, or
// for a new one:
//
//   rank 0   send on A     wait on B           rank 1   receive on A (its connection is reset)     wait on B
//
// So whatever a thread of the process waits for, it serves these links, too, one thread at a time.
#pragma once

#include <atomic>
#include <functional>

namespace treering {

// Who uses the links of one communicator: its calls, or a thread that serves them meanwhile.
class LinkTurn {
 public:
  // A thread that serves them blocks nowhere: it is waited for.
  void take();
  bool try_take() { return !taken_.exchange(true, std::memory_order_acquire); }
  void give_back() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class IdleLinks {
 public:
  // Adds the links of a communicator that has been created. `serve` is called until remove() returns, by any thread; it
  // neither waits nor throws.
  static void add(const void* owner, std::function<void()> serve);
  static void remove(const void* owner);
  // To be called again and again by each wait; does something every now and then. Nothing in it waits.
  static void serve();
};

}  // namespace treering
