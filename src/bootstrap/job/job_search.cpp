// SPDX-License-Identifier: Apache-2.0
// How a process of a job seeks a parent in the tree.
#include <fmt/format.h>
#include <unistd.h>

#include "bootstrap/job/job.h"
#include "core/log.h"

namespace treering {
namespace {

constexpr auto kSeekAgain = std::chrono::milliseconds(50);

}  // namespace

void Job::attach() {
  search_.begin(Clock::now());
  try_next_parent();
}

void Job::attach_to(const Place& place) {
  search_.begin_with(place);
  try_next_parent();
}

Clock::duration Job::timeout_for(const Place& parent) const {
  return search_.timeout_for(parent, state_ == State::kRendezvous, Clock::now());
}

void Job::try_next_parent() {
  if (closed_) return;
  const std::optional<Place> next = search_.next();
  if (!next) return no_parent();
  auto done = [self = shared_from_this(), place = *next](const Status& status, bool gone,
                                                         std::shared_ptr<Channel> channel) {
    self->dial_ = nullptr;
    if (status.code() == trTimeout) self->search_.no_answer(place);
    if (status.ok()) return self->ask_to_attach(std::move(channel), place);
    if (gone && self->tree_.has_left(place.process)) self->detector_.relay_is_gone(place.process);
    if (const std::string why = self->search_.failed(place, status.message()); !why.empty())
      log_line(LogLevel::kInfo, "cannot attach to " + why);
    self->try_next_parent();
  };
  dial_ = Dial::start(agent_, find_candidates(own_, agent_->interfaces(), *next, false, 0), id_.job, id_.secret,
                      Clock::now() + timeout_for(*next), std::move(done));
}

void Job::ask_to_attach(std::shared_ptr<Channel> channel, const Place& parent) {
  auto self = shared_from_this();
  Channel::Events events;
  events.frame = [self, parent](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    AttachedMessage message;
    if (!decode(bytes, &message)) return;
    self->agent_->cancel(self->asked_timer_);
    self->attached(std::exchange(self->asked_, nullptr), parent.process);
  };
  events.closed = [self, parent](const std::string& reason) {
    self->agent_->cancel(self->asked_timer_);
    self->asked_ = nullptr;
    (void)self->search_.failed(parent, reason);
    self->try_next_parent();
  };
  asked_timer_ = agent_->after(timeout_for(parent), [self, parent, late = events.closed] {
    self->search_.no_answer(parent);
    self->stop_asking();
    late("no answer");
  });
  asked_ = channel;
  channel->set_events(std::move(events));
  channel->send(encode(AttachMessage{own_.process, state_ == State::kRunning, exchange_.round()}));
}

void Job::stop_dialing() {
  if (dial_) std::exchange(dial_, nullptr)->cancel();
  stop_asking();
}

// It may have taken this process for a child already, or will when it runs again.
void Job::stop_asking() {
  if (!asked_) return;
  agent_->cancel(asked_timer_);
  part_from(std::exchange(asked_, nullptr), kNobody);
}

void Job::no_parent() {
  using Outcome = ParentSearch::Outcome;
  const std::string& reasons = search_.reasons();
  if (state_ == State::kFailed) return maybe_finish();
  if (state_ == State::kRendezvous)
    return fail(
        {trRemoteError, fmt::format("the process that made the unique id (pid {}) ended while the communicator was "
                                    "being created{}{}",
                                    id_.root_pid, reasons.empty() ? "" : ": ", reasons)});
  const Outcome outcome = search_.outcome(Clock::now());
  if (outcome == Outcome::kSearchAgain) {
    agent_->after(kSeekAgain, [self = shared_from_this()] {
      if (self->seeks_parent() && !self->is_dialing()) self->attach();
    });
    return;
  }
  if (!reasons.empty()) log_line(LogLevel::kInfo, "no process above this one can be reached: " + reasons);
  if (outcome == Outcome::kStayTop) {
    follow_deserters();
    return maybe_finish();
  }
  search_.end();
  detector_.become_top(Clock::now());
  start_ticking();
  auto old = tree_.has_parent() ? take_link(tree_.parent()) : nullptr;
  tree_.become_top();
  if (old) part_from(std::move(old), own_.process);
  tell_parent(kNobody);
  for (const auto& [kind, bytes] : exchange_.take_unanswered()) at_top(kind, bytes);
  follow_deserters();
  maybe_finish();
}

}  // namespace treering
