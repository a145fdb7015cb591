// SPDX-License-Identifier: Apache-2.0
// JobContext: what all parts of a job read and the Job alone changes: how far it has come, and where this process is.
// It also gives the parts timers and connections that keep the job alive.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "bootstrap/agent.h"
#include "bootstrap/dial.h"
#include "bootstrap/unique_id.h"
#include "core/clock.h"

namespace treering {

struct JobContext {
  enum class Phase { kRendezvous, kRunning, kFailed };

  Agent* agent;
  UniqueId id;
  // What a callback holds: the job lives until it has run, or is dropped.
  std::function<std::shared_ptr<const void>()> hold;
  Phase phase = Phase::kRendezvous;
  bool closed = false;  // the job has ended in this process
  Place own;            // without a number until the rendezvous root has given one

  bool meets() const { return phase == Phase::kRendezvous; }
  bool runs() const { return phase == Phase::kRunning; }
  bool has_failed() const { return phase == Phase::kFailed; }

  uint64_t after(Clock::duration delay, Agent::Task task) const {
    return agent->after(delay, [held = hold(), task = std::move(task)] { task(); });
  }
  // `tcp_only`, `way`: see find_candidates().
  std::shared_ptr<Dial> dial(const Place& target, Clock::time_point deadline, Dial::Done done, bool tcp_only = false,
                             uint32_t way = 0) const {
    auto held_done = [held = hold(), done = std::move(done)](const Status& status, DialEnd end,
                                                             std::shared_ptr<SecureConnection> connection) {
      done(status, end, std::move(connection));
    };
    return Dial::start(agent, find_candidates(own, agent->interfaces(), target, tcp_only, way), id.job, id.secret,
                       deadline, std::move(held_done));
  }
};

// A timer of a job: one task at a time.
class JobTimer {
 public:
  explicit JobTimer(const JobContext& job) : job_(job) {}
  bool is_set() const { return timer_ != 0; }
  void set(Clock::duration delay, Agent::Task task) {
    cancel();
    timer_ = job_.after(delay, [this, task = std::move(task)] {
      timer_ = 0;
      task();
    });
  }
  void cancel() {
    if (timer_ != 0) job_.agent->cancel(std::exchange(timer_, 0));
  }

 private:
  const JobContext& job_;
  uint64_t timer_ = 0;
};

}  // namespace treering
