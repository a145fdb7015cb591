// SPDX-License-Identifier: Apache-2.0
// How a process of a job seeks a parent in the tree.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bootstrap/job.h"
#include "core/log.h"

namespace treering {
namespace {

constexpr auto kAttachPatience = std::chrono::seconds(5);  // with one possible parent
constexpr auto kReattachPatience = std::chrono::seconds(2);
constexpr auto kSeekAgain = std::chrono::milliseconds(50);
constexpr size_t kMaxOfHost = 6;

}  // namespace

std::vector<Place> Job::possible_parents(bool without_current) const {
  std::vector<Place> places;
  std::map<uint32_t, size_t> of_host;
  // Those that have left may still be relays, but will not be for long.
  auto add = [&](const Place& place, bool left) {
    const uint32_t process = place.process;
    const bool known = std::any_of(places.begin(), places.end(), [&](const Place& p) { return p.process == process; });
    if (known || process == own_.process || detector_.is_lost(process) || detector_.is_silent(process)) return;
    if (tree_.is_child(process) || tree_.has_left(process) != left) return;
    if (without_current && tree_.is_parent(process)) return;
    if (places.size() < kMaxParents && ++of_host[place.host] <= kMaxOfHost) places.push_back(place);
  };
  for (bool left : {false, true}) {
    for (const Place& place : ancestors_) add(place, left);
    for (uint32_t process = 0; process < own_.process && process < tree_.size(); ++process)
      add(tree_.place(process), left);
  }
  return places;
}

void Job::attach() {
  mute_.clear();
  mute_hosts_.clear();
  if (seeking_since_ == Clock::time_point()) seeking_since_ = Clock::now();
  try_parents(possible_parents(tree_.has_parent()), "");
}

void Job::note_mute(const Place& place) {
  mute_.insert(place.process);
  mute_hosts_.insert(place.host);
}

// Whether one has not answered that may just be late, as it seeks a parent itself: it would be another top.
bool Job::may_be_late() const {
  if (state_ != State::kRunning || Clock::now() >= seeking_since_ + kSearchPatience) return false;
  return std::any_of(mute_.begin(), mute_.end(), [this](uint32_t process) {
    if (detector_.has_ended(process) || process >= tree_.size()) return false;
    const uint32_t parent = tree_.parent_of(process);
    return detector_.has_ended(parent) || (parent < tree_.size() && tree_.has_left(parent));
  });
}

Clock::duration Job::patience_with(const Place& parent) const {
  if (state_ == State::kMeeting) return kAttachPatience;
  const Clock::duration patience = mute_hosts_.count(parent.host) != 0 ? kMuteHostPatience : kReattachPatience;
  if (seeking_since_ == Clock::time_point()) return patience;
  return std::clamp<Clock::duration>(seeking_since_ + kSearchPatience - Clock::now(), kMuteHostPatience, patience);
}

void Job::try_parents(std::vector<Place> candidates, std::string reasons) {
  if (closed_) return;
  if (candidates.empty()) return no_parent(reasons);
  const Place next = candidates.front();
  candidates.erase(candidates.begin());
  auto self = shared_from_this();
  dial_ =
      Dial::start(agent_, find_candidates(own_, agent_->interfaces(), next, false, 0), id_.job, id_.secret,
                  Clock::now() + patience_with(next),
                  [self, next, candidates, reasons](const Status& status, bool gone, std::shared_ptr<Channel> channel) {
                    self->dial_ = nullptr;
                    if (status.code() == trTimeout) self->note_mute(next);
                    if (status.ok()) return self->ask_to_attach(std::move(channel), next, candidates, reasons);
                    if (gone && self->tree_.has_left(next.process)) self->detector_.relay_is_gone(next.process);
                    if (self->tree_.has_left(next.process)) return self->try_parents(candidates, reasons);
                    const std::string more = fmt::format("{}process {} (pid {} on {}): {}", reasons.empty() ? "" : "; ",
                                                         next.process, next.pid, next.host_name, status.message());
                    log_line(LogLevel::kInfo, "cannot attach to " + more);
                    self->try_parents(candidates, reasons + more);
                  });
}

void Job::ask_to_attach(std::shared_ptr<Channel> channel, const Place& parent, std::vector<Place> others,
                        std::string reasons) {
  auto self = shared_from_this();
  Channel::Events events;
  events.frame = [self, parent](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    AttachedMessage message;
    if (!decode(bytes, &message)) return;
    self->agent_->cancel(self->asked_timer_);
    self->attached(std::exchange(self->asked_, nullptr), parent.process);
  };
  events.closed = [self, others, reasons, parent](const std::string& reason) {
    self->agent_->cancel(self->asked_timer_);
    self->asked_ = nullptr;
    if (self->tree_.has_left(parent.process)) return self->try_parents(others, reasons);
    self->try_parents(others, fmt::format("{}{}process {} (pid {} on {}): {}", reasons, reasons.empty() ? "" : "; ",
                                          parent.process, parent.pid, parent.host_name, reason));
  };
  asked_timer_ = agent_->after(patience_with(parent), [self, parent, late = events.closed] {
    self->note_mute(parent);
    self->stop_asking();
    late("no answer");
  });
  asked_ = channel;
  channel->set_events(std::move(events));
  channel->send(encode(AttachMessage{own_.process, state_ == State::kRunning, round_}));
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

// Nobody above is left, or answers: a silent parent cannot bring a verdict to anybody.
void Job::no_parent(const std::string& reasons) {
  if (state_ == State::kFailed) return maybe_finish();
  if (state_ == State::kMeeting)
    return fail(
        {trRemoteError, fmt::format("the process that made the unique id (pid {}) ended while the communicator was "
                                    "being created{}{}",
                                    id_.root_pid, reasons.empty() ? "" : ": ", reasons)});
  if (!tree_.is_top() && !tree_.has_parent() && may_be_late()) {
    agent_->after(kSeekAgain, [self = shared_from_this()] {
      if (self->seeks_parent() && !self->is_dialing()) self->attach();
    });
    return;
  }
  if (!reasons.empty()) log_line(LogLevel::kInfo, "no process above this one can be reached: " + reasons);
  if (tree_.is_top()) return follow_deserters(), maybe_finish();  // as before
  seeking_since_ = {};
  detector_.become_top(Clock::now());
  start_ticking();
  auto old = tree_.has_parent() ? take_link(tree_.parent()) : nullptr;
  tree_.become_top();
  if (old) part_from(std::move(old), own_.process);
  tell_parent(kNobody);
  for (Pending& pending : std::exchange(pending_, {})) at_top(pending.kind, pending.bytes);
  follow_deserters();
  maybe_finish();
}

}  // namespace treering
