// SPDX-License-Identifier: Apache-2.0
// Notices that reach every process of a job, and the liveness of the neighbours in the tree.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bootstrap/job/job.h"
#include "core/log.h"
#include "core/process.h"

namespace treering {
namespace {

constexpr auto kTick = std::chrono::milliseconds(500);
constexpr auto kHeartbeatPeriod = std::chrono::milliseconds(1000);
constexpr size_t kMaxProbes = 16;
constexpr auto kTellAttempt = std::chrono::seconds(1);  // the kernel alone would ask again less and less often
constexpr const char* kDoesNotAnswer = "its process does not answer";

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void Job::notify(NoticeMessage notice) { take_notice(notices_.number(std::move(notice), own_.process), own_.process); }

void Job::tell_parent(uint32_t parent) {
  notify({.type = NoticeType::kMoved, .process = own_.process, .other = parent});
}

// That this process has left in good order, for those who will see its connections end.
void Job::tell_neighbours_of_end() {
  const std::string bytes =
      encode(NoticeMessage{.origin = own_.process, .type = NoticeType::kDissolved, .process = own_.process});
  for (uint32_t neighbour : tree_.neighbours()) send(neighbour, bytes);
}

void Job::take_notice(const NoticeMessage& notice, uint32_t from) {
  const NoticeLog::Taken taken = notices_.take(notice, Clock::now());
  if (taken.pass_on) {
    const std::string bytes = encode(notice);
    for (uint32_t neighbour : tree_.neighbours())
      if (neighbour != from) send(neighbour, bytes);
  }
  if (taken.apply) apply(notice);
}

void Job::apply(const NoticeMessage& notice) {
  switch (notice.type) {
    case NoticeType::kVerdict:
      exchange_.answered(Kind::kSpread);
      if (exchange_.is_awaited()) fail_exchange();
      for (auto& [rank, member] : members_)
        member->tell([code = notice.code, text = notice.text](const MemberEvents& events) {
          if (events.on_verdict) events.on_verdict(code, text);
        });
      return tell_untold();
    case NoticeType::kLost:
      return apply_loss(notice);
    case NoticeType::kSilent:
      if (notice.process == own_.process) return report_heard(own_.process);
      if (detector_.take_silence(notice, Clock::now())) publish_silence();
      return;
    case NoticeType::kHeard:
      if (detector_.take_heard(notice.process)) publish_silence();
      return;
    case NoticeType::kMoved:
      tree_.move(notice.process, notice.other);
      if (detector_.take_move(notice.process)) publish_silence();
      return;
    case NoticeType::kRankLeft: {
      const Status cause(static_cast<trResult_t>(notice.code), notice.text);
      tree_.rank_left(notice.other);
      if (tree_.is_top() && root_ && !notices_.has_verdict() &&
          (state_ == State::kRendezvous || exchange_.lacks(notice.other)))
        if (Status status = why_left(notice.other); !status.ok()) fail(status);
      for (auto& [rank, member] : members_)
        member->tell([left = notice.other, cause](const MemberEvents& events) {
          if (events.on_left) events.on_left(left, cause);
        });
      return;
    }
    case NoticeType::kDissolved:
      for (uint32_t rank : tree_.ranks_of(notice.process)) tree_.rank_left(rank);
      return;
  }
}

void Job::apply_loss(const NoticeMessage& notice) {
  if (!detector_.take_loss(notice.process, Clock::now())) return;
  if (detector_.take_heard(notice.process)) publish_silence();
  if (tree_.is_top() && root_ && (state_ == State::kRendezvous || exchange_.is_under_way())) {
    if (Status status = root_->lost_process(notice.process); !status.ok()) return fail(status);
  } else if (state_ == State::kRunning && exchange_.is_awaited()) {
    end_exchange();
    return fail_members({trRemoteError, tree_.say(notice)});
  }
  if (state_ != State::kRunning || tree_.has_left(notice.process)) return;
  const std::vector<uint32_t> ranks = tree_.present_ranks(notice.process);
  if (ranks.empty()) return;
  for (auto& [rank, member] : members_)
    member->tell([ranks, text = tree_.say(notice)](const MemberEvents& events) {
      if (events.on_lost) events.on_lost(ranks, text);
    });
}

void Job::report_loss(uint32_t process, const std::string& what) {
  if (detector_.conclude_loss(process)) notify({.type = NoticeType::kLost, .process = process, .text = what});
}

// For this process it means: it has been told that it is silent, so it can be heard again, if by another way.
void Job::report_heard(uint32_t process) {
  if (!detector_.is_silent(process) && process != own_.process) return;
  notify({.type = NoticeType::kHeard, .process = process});
}

void Job::start_ticking() {
  if (tick_timer_ != 0 || closed_) return;
  last_tick_ = Clock::now();
  for (auto& [rank, member] : members_) {
    std::lock_guard lock(member->mutex);
    member->ticked = last_tick_;
  }
  auto self = shared_from_this();
  tick_timer_ = agent_->after(kTick, [self] {
    self->tick_timer_ = 0;
    self->tick();
  });
}

void Job::tick() {
  const auto now = Clock::now();
  const bool was_asleep = now - last_tick_ > kOwnPause;
  for (auto& [rank, member] : members_) {
    std::lock_guard lock(member->mutex);
    member->ticked.reset();
    if (was_asleep) member->own_pause = {now - last_tick_, now};
  }
  if (closed_ || detector_.is_idle(state_ == State::kRunning, now)) return;
  const bool heartbeat_due = now - last_heartbeat_ >= kHeartbeatPeriod;
  if (heartbeat_due) last_heartbeat_ = now;
  for (uint32_t process : tree_.neighbours()) {
    const auto link = links_.find(process);
    if (link == links_.end()) continue;
    if (heartbeat_due) link->second->send(encode(HeartbeatMessage{}));
    if (was_asleep) link->second->forgive_silence();
    listen(process, now - link->second->heard());
  }
  if (state_ == State::kRunning) look_at_the_tree(now);
  maybe_finish();
  start_ticking();
}

void Job::listen(uint32_t neighbour, Clock::duration silence) {
  if (silence >= kSilence && state_ != State::kRunning) return;
  const FailureDetector::Hearing hearing = detector_.listen(neighbour, silence);
  if (hearing.change == FailureDetector::Change::kAnswersAgain) {
    if (hearing.warn)
      log_line(LogLevel::kWarn, fmt::format("{}: its process answers again", tree_.describe(neighbour)));
    if (hearing.spread) report_heard(neighbour);
  } else if (hearing.change == FailureDetector::Change::kFellSilent) {
    if (hearing.warn)
      log_line(LogLevel::kWarn, fmt::format("{}: its process has not answered for {:.1f} s", tree_.describe(neighbour),
                                            seconds(silence)));
    const auto length = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
    if (hearing.spread)
      notify({.type = NoticeType::kSilent,
              .process = neighbour,
              .other = static_cast<uint32_t>(length),
              .text = kDoesNotAnswer});
    if (tree_.is_parent(neighbour) && !is_dialing()) attach();
  }
}

void Job::look_at_the_tree(Clock::time_point now) {
  for (NoticeMessage& notice : detector_.cut_off(now)) notify(std::move(notice));
  if (state_ != State::kRunning) return;  // a loss may have ended an exchange
  tell_untold();
  for (uint32_t process : detector_.missing(now)) probe(process);
  if (const uint32_t process = detector_.other_part(now); process != kNobody && !is_dialing() && !seeks_parent())
    attach_to(tree_.place(process));
  for (uint32_t process : detector_.overdue(now)) probe(process);
}

void Job::examine(uint32_t process) {
  if (closed_) return;
  const pid_t pid = detector_.pid_of_broken(process);
  take_step(process,
            detector_.examine(process, pid > 0 && process_has_ended(pid), state_ == State::kRunning, Clock::now()));
}

void Job::take_step(uint32_t process, const FailureDetector::Step& step) {
  using Next = FailureDetector::Step::Next;
  if (step.next == Next::kExamineAgain || step.next == Next::kProbe) start_ticking();
  switch (step.next) {
    case Next::kNothing:
      return;
    case Next::kExamineAgain:
      agent_->after(step.after, [self = shared_from_this(), process] { self->examine(process); });
      return;
    case Next::kProbe:
      return probe(process);
    case Next::kTellHeard:
      return report_heard(process);
    case Next::kTellSilent:
      return notify({.type = NoticeType::kSilent, .process = process, .text = kDoesNotAnswer});
    case Next::kTellLost:
      return report_loss(process, step.text);
  }
}

// Asks at its addresses whether it is there.
void Job::probe(uint32_t process) {
  if (probes_.count(process) != 0 || probes_.size() >= kMaxProbes) return;
  auto done = [self = shared_from_this(), process](const Status& status, bool gone,
                                                   const std::shared_ptr<Channel>& channel) {
    using Answer = FailureDetector::Answer;
    self->probes_.erase(process);
    if (channel) channel->close();
    if (self->closed_) return;
    const Answer answer = status.ok()                  ? Answer::kListens
                          : gone                       ? Answer::kRefuses
                          : status.code() == trTimeout ? Answer::kNone
                                                       : Answer::kFailed;
    self->take_step(process, self->detector_.probed(process, answer, Clock::now()));
  };
  probes_[process] = Dial::start(agent_, find_candidates(own_, agent_->interfaces(), tree_.place(process), false, 0),
                                 id_.job, id_.secret, Clock::now() + kSilence, std::move(done));
}

// By connections of their own, each with all that is known, as a new neighbour is told: a network that is back takes some
// seconds until the tree is one again, and this process may end before.
void Job::tell_untold() {
  if (closed_ || state_ != State::kRunning || !notices_.has_verdict()) return;
  for (uint32_t process : detector_.untold(notices_.verdict_at(), Clock::now())) {
    if (tellings_.count(process) != 0 || process >= tree_.size()) continue;
    auto done = [self = shared_from_this(), process](const Status&, bool gone,
                                                     const std::shared_ptr<Channel>& channel) {
      self->tellings_.erase(process);
      if (gone) self->detector_.told(process);  // there is none to tell
      if (!channel) return;                     // else again, until the time for it is over
      for (const NoticeMessage& notice : self->notices_.notices()) channel->send(encode(notice));
      channel->close_after_sending();
      self->detector_.told(process);
      self->maybe_finish();
    };
    tellings_[process] =
        Dial::start(agent_, find_candidates(own_, agent_->interfaces(), tree_.place(process), false, 0), id_.job,
                    id_.secret, Clock::now() + kTellAttempt, std::move(done));
  }
}

// What is told on a connection that is for that alone.
void Job::hear(std::shared_ptr<Channel> channel, const std::string& first) {
  auto take = [self = shared_from_this()](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    NoticeMessage notice;
    if (!self->closed_ && decode(bytes, &notice)) self->take_notice(notice, kNobody);
  };
  Channel::Events events;
  events.frame = take;
  keep_until_closed(std::move(channel), std::move(events));
  take(first, -1);
}

void Job::publish_silence() {
  const std::vector<SilentRanks> all = detector_.silent_ranks();
  const std::optional<SilentRanks> relay = detector_.silent_relay();
  for (auto& [rank, member] : members_)
    member->change([&, &member = member] {
      member->silent = all;
      member->silent_relay = relay;
    });
}

void Job::spread(uint32_t code, const std::string& text) {
  if (!notices_.has_verdict()) up(Kind::kSpread, encode(SpreadMessage{code, text}));
}

void Job::fail_at_own_limit(const Status& status) {
  if (closed_ || notices_.has_verdict() || state_ == State::kFailed) return;
  if (state_ == State::kRunning) {
    spread(static_cast<uint32_t>(status.code()), fmt::format("{}: {}", tree_.describe(own_.process), status.message()));
  } else if (root_) {
    fail({status.code(), fmt::format("the process that made the unique id (pid {} on {}): {}", own_.pid, own_.host_name,
                                     status.message())});
  }
}

void Job::leave(uint32_t rank, bool dissolved, const Status& cause) {
  if (!members_left_.insert(rank).second) return;
  for (auto [at, end] = members_.equal_range(rank); at != end; ++at) {
    at->second->events = {};
    at->second->has_events = true;  // what came and comes is dropped
    for (auto& event : std::exchange(at->second->waiting, {})) event(at->second->events);
  }
  if (closed_) return;
  const bool all_left = std::all_of(members_.begin(), members_.end(),
                                    [this](const auto& member) { return members_left_.count(member.first) != 0; });
  if (dissolved && state_ == State::kRunning) {
    tree_.rank_left(rank);
    if (all_left) tell_neighbours_of_end();
  } else if (state_ != State::kFailed && own_.process != kNobody) {
    notify({.type = NoticeType::kRankLeft,
            .process = own_.process,
            .other = rank,
            .code = static_cast<uint32_t>(cause.code()),
            .text = cause.message()});
  }
  if (state_ == State::kRendezvous && all_left && !root_) return finish();
  maybe_finish();
}

}  // namespace treering
