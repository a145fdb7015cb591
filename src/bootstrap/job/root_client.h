// SPDX-License-Identifier: Apache-2.0
// RootClient: a process's way to the rendezvous root, which gives it its place in the tree.
//
//   start() --dial--> JoinMessage --> PlacedMessage: placed    FailedMessage: failed
//     ^----- RootSearch: again after a moment, or failed
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bootstrap/job/job_context.h"
#include "bootstrap/root_search.h"

namespace treering {

class RootClient {
 public:
  struct Events {
    // The connection to the root may become the one to the parent.
    std::function<void(PlacedMessage placed, std::shared_ptr<SecureConnection> connection)> placed;
    std::function<void(const Status&)> failed;
  };
  // When the process began, and was so far.
  struct Times {
    Clock::time_point began = Clock::now(), found, placed;
  };
  RootClient(const JobContext& job, Events events) : job_(job), events_(std::move(events)) {}

  void start(Clock::time_point deadline);
  bool has_started() const { return search_.has_value(); }
  void stop_dialing();
  void close();
  // This process is the root.
  void is_root() { times_.found = times_.placed = times_.began; }
  const Times& times() const { return times_; }

 private:
  void find();
  void find_later(Clock::duration pause);
  void join(std::shared_ptr<SecureConnection> connection);
  void take_place(std::shared_ptr<SecureConnection> connection, const std::string& bytes);

  const JobContext& job_;
  const Events events_;
  Times times_;
  std::optional<RootSearch> search_;
  std::shared_ptr<Dial> dial_;
  std::shared_ptr<SecureConnection> joining_;  // the root has not answered yet
  JobTimer answer_timer_{job_};                // until it has
};

}  // namespace treering
