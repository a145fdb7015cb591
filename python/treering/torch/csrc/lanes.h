// SPDX-License-Identifier: Apache-2.0
// Sends and receives of a group.
//
// A program may post them in any order on both sides, and with tags. So none may wait for another one, but for those of
// the same direction between the same two ranks: these are a lane. A lane has a communicator of its own, of the two
// ranks, and a thread, which are made when it is first used. The ranks meet through the group's store.
//
//   rank 0:  lane 0 -> 1, sending           rank 1:  lane 0 -> 1, receiving
//            header (tag, bytes), payload   ------>  to the first receive with the tag; where there is none, kept
//
// A receiver asks for a header only while a receive waits for one.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "treering/treering.h"
#include "work.h"

namespace treering::pytorch {

// What the lanes of a group share.
struct LaneGroup {
  c10::intrusive_ptr<c10d::Store> store;  // used by lanes alone, which never wait in it
  std::string name;
  int rank = 0;
  std::chrono::milliseconds timeout{0};
};

// A send or a receive.
struct Posted {
  c10::intrusive_ptr<CollectiveWork> work;
  void* data = nullptr;
  size_t bytes = 0;
  int tag = 0;
};

class Lane {
 public:
  enum class Way { kSends, kReceives };
  Lane(const LaneGroup& group, int peer, Way way);
  ~Lane() { close("the group was destroyed"); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void post(Posted posted);
  // Ends all that is posted, with an error.
  void close(const char* why);

 private:
  void run();
  bool open();
  // The receiver has come: the two make the communicator at once, so that neither waits in that for a dead one.
  std::string meet(trUniqueId* id);
  void make_communicator(const trUniqueId& id);
  bool wait_for(const std::string& key, std::string* failure);
  void send_next();
  void receive_next();
  bool take_kept();
  void receive_payload(int tag, size_t bytes);
  trResult_t call(trResult_t result);
  void fail(const std::string& words);
  void finish(Posted posted, const std::string& failure);
  Posted take_posted(int tag);

  const LaneGroup& group_;
  const int peer_;
  const Way way_;
  const std::string key_;   // in the store
  const std::string text_;  // "send to rank 3"

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Posted> posted_;
  std::string failure_;  // of the lane: all that is posted fails by it
  std::atomic<const char*> closed_{nullptr};
  std::atomic<trComm_t> comm_{nullptr};
  // Messages that came before a receive with their tag, the thread's.
  std::map<int, std::deque<std::vector<std::byte>>> kept_;
  std::thread thread_;
};

class Lanes {
 public:
  Lanes(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, std::chrono::milliseconds timeout);
  ~Lanes();
  void post(int peer, Lane::Way way, Posted posted);
  void close(const char* why);

 private:
  LaneGroup group_;
  const int process_;  // that the threads are of
  std::mutex mutex_;
  const char* closed_ = nullptr;
  std::map<std::pair<int, Lane::Way>, std::unique_ptr<Lane>> lanes_;
};

}  // namespace treering::pytorch
