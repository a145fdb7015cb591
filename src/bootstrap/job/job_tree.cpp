// SPDX-License-Identifier: Apache-2.0
// The tree of a job's processes: attaching to a parent, children, what passes through.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bootstrap/job/job.h"
#include "core/log.h"

namespace treering {
namespace {

constexpr auto kLookForOrphans = std::chrono::milliseconds(100);

}  // namespace

// Keeps it until it is answered, for a parent may end with it.
void Job::up(Kind kind, std::string bytes) {
  if (tree_.is_top()) return at_top(kind, bytes);
  if (tree_.has_parent()) send(tree_.parent(), bytes);
  exchange_.keep(kind, std::move(bytes));
}

void Job::down(const std::string& bytes) {
  for (uint32_t child : tree_.children()) send(child, bytes);
}

std::shared_ptr<Channel> Job::take_link(uint32_t process) {
  tree_.remove(process);
  return links_.extract(process).mapped();
}

// The other side closes the connection, when it has read why: if this one did, what the other has sent meanwhile would
// reset the connection when the network heals, which looks like a death.
void Job::part_from(std::shared_ptr<Channel> channel, uint32_t new_top) {
  channel->send(encode(MovingMessage{own_.process, new_top}));
  keep_until_closed(std::move(channel), {});
}

void Job::keep_until_closed(std::shared_ptr<Channel> channel, Channel::Events events) {
  events.closed = [self = shared_from_this(), raw = channel.get()](const std::string&) {
    std::erase_if(self->former_, [raw](const auto& former) { return former.get() == raw; });
  };
  channel->set_events(std::move(events));
  former_.insert(std::move(channel));
}

void Job::attached(std::shared_ptr<Channel> channel, uint32_t parent) {
  if (closed_) return channel->close();
  if (attached_ == Clock::time_point()) {
    attached_ = Clock::now();
    for (const auto& [rank, member] : members_)
      member->change([&, &reached = member] { reached->reach = attached_ - found_; });
  }
  search_.end();
  if (tree_.has_parent()) part_from(take_link(tree_.parent()), parent);
  if (tree_.is_top()) {
    watch_deadline(Clock::time_point::max());
    exchange_.hand_over();  // to the one above, with all that is unanswered
  }
  detector_.connected(parent);
  end_link(parent);  // of a child: its message that it has moved may yet be on its way
  tree_.attach_to(parent);
  links_[parent] = std::move(channel);
  publish_silence();  // it may be of the parent before
  listen_to(parent);
  for (const NoticeMessage& notice : notices_.notices()) send(parent, encode(notice));
  for (const auto& [kind, bytes] : exchange_.unanswered()) send(parent, bytes);
  if (state_ == State::kRunning && tree_.parent_of(own_.process) != parent) tell_parent(parent);
  start_ticking();
  follow_deserters();
  maybe_finish();
}

void Job::accept_child(std::shared_ptr<Channel> channel, const AttachMessage& attach) {
  const uint32_t process = attach.process;
  if (closed_ || process == own_.process || (tree_.has_met() && process >= tree_.size())) return channel->close();
  if (tree_.is_parent(process)) return channel->close();
  channel->send(encode(AttachedMessage{own_.process}));
  end_link(process);
  detector_.connected(process);
  tree_.add_child(process);
  links_[process] = std::move(channel);
  listen_to(process);
  if (state_ == State::kRunning && !attach.has_process_table) send_process_table(process);
  if (state_ == State::kRunning && attach.round < exchange_.round()) send(process, exchange_.last_blobs());
  for (const NoticeMessage& notice : notices_.notices()) send(process, encode(notice));
  if (state_ == State::kFailed)
    send(process, encode(FailedMessage{static_cast<uint32_t>(failure_.code()), failure_.message()}));
  report_heard(process);
  start_ticking();
}

void Job::listen_to(uint32_t neighbour) {
  auto self = shared_from_this();
  Channel::Events events;
  events.frame = [self, neighbour](const std::string& bytes, int fd) { self->on_message(neighbour, bytes, fd); };
  events.closed = [self, neighbour](const std::string& reason) { self->on_closed(neighbour, reason); };
  links_.at(neighbour)->set_events(std::move(events));
}

void Job::on_message(uint32_t from, const std::string& bytes, int fd) {
  const auto kind = kind_of(bytes);
  const bool from_parent = tree_.is_parent(from);
  ProcessTableMessage table;
  if (from_parent && decode(bytes, &table)) return take_process_table(std::move(table), fd);
  if (fd >= 0) ::close(fd);
  if (!kind) return;
  NoticeMessage notice;
  FailedMessage failed;
  MovingMessage moving;
  switch (*kind) {
    case Kind::kHello:
    case Kind::kBlob:
    case Kind::kSpread:
      if (!from_parent) up(*kind, bytes);
      break;
    case Kind::kBlobs:
      if (from_parent) take_blobs(bytes);
      break;
    case Kind::kFailed:
      if (from_parent && decode(bytes, &failed)) fail({static_cast<trResult_t>(failed.code), failed.text});
      break;
    case Kind::kNotice:
      if (decode(bytes, &notice)) take_notice(notice, from);
      break;
    case Kind::kMoving:
      if (decode(bytes, &moving)) on_moving(from, moving);
      break;
    case Kind::kQuestion:
      take_question(bytes, from);
      break;
    case Kind::kAnswer:
      take_answer(bytes, from);
      break;
    case Kind::kIntroduction:
      take_introduction(bytes, from);
      break;
    default:  // kHeartbeat: that it was heard is all
      break;
  }
}

void Job::end_link(uint32_t process) {
  if (links_.count(process) == 0) return;
  const auto channel = take_link(process);
  channel->set_events({});
  channel->close();
}

// A child has another parent, or has left. It may have had to, because this process did not answer for a while.
void Job::on_moving(uint32_t from, const MovingMessage& message) {
  if (message.process == from) end_link(from);
  if (state_ == State::kRunning && message.new_top != own_.process && message.new_top < tree_.size())
    follow(message, from);
  maybe_finish();
}

void Job::follow(const MovingMessage& deserter, uint32_t from) {
  switch (search_.follow(deserter, from, is_dialing() || seeks_parent(), Clock::now())) {
    case ParentSearch::Follow::kAttach:
      return attach_to(tree_.place(deserter.new_top));
    case ParentSearch::Follow::kTellParent:
      return send(tree_.parent(), encode(deserter));
    case ParentSearch::Follow::kLater:
    case ParentSearch::Follow::kNothing:
      return;
  }
}

void Job::follow_deserters() {
  for (const auto& [deserter, from] : search_.take_deserters()) follow(deserter, from);
}

void Job::on_closed(uint32_t process, const std::string& reason) {
  const auto link = links_.find(process);
  if (link == links_.end() || closed_) return;
  const bool was_parent = tree_.is_parent(process);
  const FailureDetector::Broken broken{reason, Clock::now(), link->second->peer_pid(), was_parent};
  end_link(process);
  if (tree_.has_left(process)) {
    detector_.relay_is_gone(process);
  } else if (state_ != State::kFailed) {
    detector_.connection_ended(process, broken);
    examine(process);
  }
  if (closed_) return;
  if (was_parent && !is_dialing() && state_ != State::kFailed) attach();
  maybe_finish();
}

// Towards a process, by what is known of the parents of all.
void Job::route(uint32_t process, const std::string& bytes, uint32_t from) {
  if (const uint32_t hop = tree_.next_hop(process, from); hop != kNobody) send(hop, bytes);
}

bool Job::awaits_orphans() const {
  if (closed_ || !notices_.has_verdict()) return false;
  const auto at = notices_.verdict_at(), now = Clock::now();
  return detector_.awaits_orphans(search_.mute(), at, now) || !detector_.untold(at, now).empty();
}

void Job::maybe_finish() {
  // A new parent that has not been told that this process leaves would take its end for a death.
  if (closed_ || state_ == State::kRendezvous || seeks_parent()) return;
  // A child that does not answer finds another parent when it can: it would hold this process for ever.
  if (detector_.hears_a_child()) return;
  const bool all_left = std::all_of(members_.begin(), members_.end(),
                                    [this](const auto& member) { return members_left_.count(member.first) != 0; });
  if (!all_left || (root_ && state_ == State::kFailed)) return;
  if (awaits_orphans()) {
    tell_untold();
    if (orphans_timer_ == 0)
      orphans_timer_ = agent_->after(kLookForOrphans, [self = shared_from_this()] {
        self->orphans_timer_ = 0;
        self->maybe_finish();
      });
    return;
  }
  finish();
}

void Job::finish() {
  if (closed_) return;
  closed_ = true;
  auto self = shared_from_this();
  if (root_ && id_.root_local != 0) agent_->rendezvous_ended(id_.job, state_ != State::kFailed && tree_.has_met());
  watch_deadline(Clock::time_point::max());
  if (missing_timer_ != 0) agent_->cancel(missing_timer_);
  if (tick_timer_ != 0) agent_->cancel(tick_timer_);
  for (auto& [rank, member] : members_) member->change([&member = member] { member->ticked.reset(); });
  if (orphans_timer_ != 0) agent_->cancel(orphans_timer_);
  stop_dialing();
  for (const auto& [process, dial] : std::exchange(probes_, {})) dial->cancel();
  for (const auto& [process, dial] : std::exchange(tellings_, {})) dial->cancel();
  for (const auto& channel : std::exchange(former_, {})) channel->close();
  for (const auto& dial : std::exchange(dials_, {})) dial->cancel();
  if (joining_) std::exchange(joining_, nullptr)->close();
  for (const Opening& opening : std::exchange(opening_, {})) {
    if (opening.timer != 0) agent_->cancel(opening.timer);
    opening.channel->close();
  }
  if (tree_.has_parent()) send(tree_.parent(), encode(MovingMessage{own_.process, kNobody}));
  for (uint32_t neighbour : tree_.neighbours()) {
    const auto channel = take_link(neighbour);
    channel->set_events({});
    channel->close_after_sending();
  }
  agent_->remove_job(id_.job);
}

}  // namespace treering
