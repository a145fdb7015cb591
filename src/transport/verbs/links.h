// SPDX-License-Identifier: Apache-2.0
// Links: those of a rank, by peer, and the thread that answers introductions.
//
//   control thread:  introduced() ---> introductions that wait ---> own thread: makes the link, connects it, answers
//   rank's thread:   find_or_make(), at its first message to a peer
//
// To make a link takes a while: memory is registered with each device, and queue pairs are made. The control thread, to
// which heartbeats and failures come, does none of it. Nor can it be left to the rank: its peers send to it, too, while
// it is in no call. The thread is started by the first introduction.
//
// Invariants: no lock is held while a link is made, connected or stopped. A link is made once, by the thread that asks
// first; the other one waits for it. The latest of a peer's introductions that wait counts: it says all that those before
// it say.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "transport/verbs/link.h"

namespace treering::verbs {

class Links {
 public:
  // Any thread, several at a time.
  using Make = std::function<std::shared_ptr<VerbsLink>(uint32_t peer)>;

  explicit Links(Make make) : make_(std::move(make)) {}
  // Connections, and with them links, may live on; they make no introductions.
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  std::shared_ptr<VerbsLink> find_or_make(uint32_t peer);
  // Those that are made.
  std::vector<std::shared_ptr<VerbsLink>> all() const;
  void arm() const;

  // The control thread's; they return at once.
  void introduced(uint32_t peer, EndPoint end);
  void departed(uint32_t peer);

  // Introductions that wait, or come, bring up no queue pair any more.
  void ignore_introductions();
  // ... and nothing is written any more by the links, or by their peers.
  void stop();
  // ... and the thread has ended: it waits for a link that is being made.
  void end();

 private:
  void work();
  void answer(uint32_t peer, const EndPoint& end);

  const Make make_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<uint32_t, std::shared_ptr<VerbsLink>> links_;  // nullptr: it is being made
  std::map<uint32_t, EndPoint> waiting_;
  std::set<uint32_t> departed_;
  pthread_t thread_{};
  bool runs_ = false;  // the thread, or is to be joined
  bool is_over_ = false, is_stopped_ = false, is_ended_ = false;
};

}  // namespace treering::verbs
