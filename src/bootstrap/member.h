// SPDX-License-Identifier: Apache-2.0
// Member: what the thread of a rank and the agent's thread share about the rank's membership.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "bootstrap/membership.h"
#include "bootstrap/question_pace.h"

namespace treering {

// What another rank has answered.
struct KnownStatus {
  std::string bytes;
  Clock::time_point came;
  uint64_t asked = 0;  // see QuestionMessage
};

struct Member {
  JoinRequest request;
  std::atomic<bool> creates{true};  // its communicator is not there yet

  std::mutex mutex;
  std::condition_variable changed;
  // Under the mutex:
  bool joined = false;
  Status failure;
  std::shared_ptr<const std::vector<PeerPlace>> peers;  // there once joined
  int segment = -1;
  bool lost_segment = false;   // its process had no descriptor left for it
  uint64_t staging_bytes = 0;  // there once joined
  uint64_t answered = 0;       // rounds
  std::shared_ptr<const std::vector<std::string>> answer;
  std::map<uint32_t, KnownStatus> statuses;
  std::optional<QuestionPace> questions;  // once one was asked
  bool is_asking_posted = false;          // to the agent, which has not come to it
  std::vector<SilentRanks> silent;
  std::optional<SilentRanks> silent_relay;
  std::optional<Clock::time_point> ticked;  // by the agent, last; it does so every half second, or not at all
  OwnPause own_pause;
  Clock::duration reach{};  // see time_for_news(); 0 until this process has its place

  // For the agent's thread alone:
  MemberEvents events;
  bool has_events = false;
  std::vector<std::function<void(const MemberEvents&)>> waiting;  // what came before the events were set

  template <typename Change>
  void change(const Change& change_it) {
    std::lock_guard lock(mutex);
    change_it();
    changed.notify_all();
  }
  void tell(std::function<void(const MemberEvents&)> event) {
    if (has_events)
      event(events);
    else
      waiting.push_back(std::move(event));
  }
};

}  // namespace treering
