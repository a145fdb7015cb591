// SPDX-License-Identifier: Apache-2.0
// Notices that reach every process of a job, and the liveness of the neighbours in the tree.
#include <fmt/format.h>

#include <algorithm>

#include "bootstrap/job.h"
#include "core/log.h"
#include "core/process.h"

namespace treering {
namespace {

constexpr auto kTick = std::chrono::milliseconds(500);
constexpr auto kBeatPeriod = std::chrono::milliseconds(1000);
constexpr auto kCutOffAfter = std::chrono::milliseconds(4500);  // of a loss or silence on the way
constexpr auto kProbeAfter = std::chrono::milliseconds(400);    // it may be about to attach
constexpr size_t kMaxProbes = 16;
constexpr auto kReturnPatience = std::chrono::milliseconds(400);  // with a neighbour whose connection broke
constexpr auto kDeathPeriod = std::chrono::milliseconds(10);      // its sockets are closed before it counts as dead

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
      answered(Kind::kSpread);
      if (!blobs_.empty() || is_pending(Kind::kBlob)) fail_exchange();
      for (auto& [rank, member] : members_)
        member->tell([code = notice.code, text = notice.text](const MemberEvents& events) {
          if (events.on_verdict) events.on_verdict(code, text);
        });
      return;
    case NoticeType::kLost:
      return apply_loss(notice);
    case NoticeType::kSilent: {
      if (notice.process == own_.process) return report_heard(own_.process);
      if (lost_.count(notice.process) != 0) return;
      auto [entry, is_new] = silent_.try_emplace(notice.process);
      if (!is_new) return;
      const auto silence = notice.other > 0 ? std::chrono::milliseconds(notice.other) : kSilence;
      entry->second = {tree_.present_ranks(notice.process), said_of(notice), Clock::now() - silence, notice.other > 0};
      return publish_silence();
    }
    case NoticeType::kHeard:
      if (silent_.erase(notice.process) != 0) publish_silence();
      return;
    case NoticeType::kMoved:
      tree_.move(notice.process, notice.other);
      broken_.erase(notice.process);
      if (silent_.erase(notice.process) != 0) publish_silence();
      return;
    case NoticeType::kRankLeft: {
      const Status cause(static_cast<trResult_t>(notice.code), notice.text);
      tree_.rank_left(notice.other);
      if (tree_.is_top() && root_ && !notices_.has_verdict() &&
          (state_ == State::kMeeting || (!blobs_.empty() && blobs_.count(notice.other) == 0)))
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
  broken_.erase(notice.process);
  if (notice.process == own_.process || !lost_.try_emplace(notice.process, Clock::now()).second) return;
  if (silent_.erase(notice.process) != 0) publish_silence();
  if (tree_.is_top() && root_ && (state_ == State::kMeeting || !blobs_.empty())) {
    if (Status status = root_->lost_process(notice.process); !status.ok()) return fail(status);
  } else if (state_ == State::kRunning && (is_pending(Kind::kBlob) || !blobs_.empty())) {
    return fail_members({trRemoteError, said_of(notice)});
  }
  if (state_ != State::kRunning || tree_.has_left(notice.process)) return;
  const std::vector<uint32_t> ranks = tree_.present_ranks(notice.process);
  if (ranks.empty()) return;
  for (auto& [rank, member] : members_)
    member->tell([ranks, text = said_of(notice)](const MemberEvents& events) {
      if (events.on_lost) events.on_lost(ranks, text);
    });
}

void Job::report_loss(uint32_t process, const std::string& what) {
  broken_.erase(process);
  if (lost_.count(process) != 0 || tree_.has_left(process)) return;
  notify({.type = NoticeType::kLost, .process = process, .text = what});
}

// Of this process: it has been told that it is silent, so it can be heard again, if by another way.
void Job::report_heard(uint32_t process) {
  if (silent_.count(process) == 0 && process != own_.process) return;
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
  const bool is_alone = tree_.neighbours().empty() && broken_.empty() && other_part() == kNobody;
  if (closed_ || (is_alone && (!tree_.is_top() || state_ != State::kRunning || below_gone_relays().empty()))) return;
  const bool beat = now - last_beat_ >= kBeatPeriod;
  if (beat) last_beat_ = now;
  for (uint32_t process : tree_.neighbours()) {
    Link* link = link_of(process);
    if (link == nullptr) continue;
    if (beat) link->channel->send(encode(BeatMessage{}));
    if (was_asleep) link->channel->forgive_silence();
    const auto silence = now - link->channel->heard();
    if (silence < kSilence) {
      if (std::exchange(link->warned, false))
        log_line(LogLevel::kWarn, fmt::format("{}: its process answers again", tree_.describe(process)));
      if (std::exchange(link->silent, false)) report_heard(process);
      continue;
    }
    if (!link->silent && state_ == State::kRunning) {
      link->silent = true;
      NoticeMessage notice;
      notice.type = NoticeType::kSilent;
      notice.process = process;
      notice.other = static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(silence).count());
      notice.text = "its process does not answer";
      if (silent_.count(process) == 0) {
        link->warned = !tree_.has_left(process);
        if (link->warned)
          log_line(LogLevel::kWarn, fmt::format("{}: its process has not answered for {:.1f} s",
                                                tree_.describe(process), seconds(silence)));
        notify(std::move(notice));
      }
      if (tree_.is_parent(process) && !is_dialing()) attach();
    }
  }
  look_for_cut_off();
  look_for_missing();
  look_for_other_part();
  for (const auto& [process, broken] : broken_)
    if (state_ == State::kRunning && now - broken.since >= kReturnPatience) probe(process);
  maybe_finish();
  start_ticking();
}

// Processes with ranks that have not ended and hang, as far as this one knows, from one that never held a rank and is gone or
// silent.
std::vector<uint32_t> Job::below_gone_relays() const {
  std::vector<uint32_t> result;
  for (uint32_t process = 0; process < tree_.size(); ++process) {
    const uint32_t parent = tree_.parent_of(process);
    const bool is_cut =
        parent < tree_.size() && !tree_.holds_ranks(parent) && (gone_.count(parent) != 0 || silent_.count(parent) != 0);
    if (is_cut && !tree_.has_left(process) && process != own_.process && lost_.count(process) == 0)
      result.push_back(process);
  }
  return result;
}

// Where the way from a process up to this one, the top, is cut: who has been gone, or silent, for a while; kNobody: the way
// leads elsewhere; this process: nowhere.
uint32_t Job::cut_at(uint32_t process) const {
  const auto now = Clock::now();
  uint32_t below = process, above = tree_.parent_of(process);
  for (size_t i = 0; i < tree_.size() && above < tree_.size(); ++i, below = above, above = tree_.parent_of(above)) {
    // What is said to hang from this process may have lost the connection, and be a top itself.
    if (above == own_.process) return tree_.is_child(below) ? above : kNobody;
    // Nobody can have come to this one before it was the top.
    if (auto dead = lost_.find(above); dead != lost_.end() && now - std::max(dead->second, top_since_) > kCutOffAfter)
      return above;
    if (auto mute = silent_.find(above); mute != silent_.end() && now - mute->second.since >= kCutOffAfter)
      return above;
  }
  return kNobody;
}

// The top says of whom nothing can be known, because those on the way to them are gone or silent.
void Job::look_for_cut_off() {
  if (!tree_.is_top() || state_ != State::kRunning || (lost_.empty() && silent_.empty())) return;
  for (uint32_t process = 0; process < tree_.size(); ++process) {
    if (process == own_.process || lost_.count(process) != 0 || silent_.count(process) != 0 || tree_.has_left(process))
      continue;
    const uint32_t above = cut_at(process);
    if (above == own_.process || above == kNobody) continue;
    const bool is_dead = lost_.count(above) != 0;
    NoticeMessage notice;
    notice.type = is_dead ? NoticeType::kLost : NoticeType::kSilent;
    notice.process = process;
    notice.text =
        fmt::format("cut off behind process {} (pid {} on {}), which {}; whether it lives is not known", above,
                    tree_.place(above).pid, tree_.place(above).host_name, is_dead ? "has ended" : "does not answer");
    notify(std::move(notice));
  }
}

// The first process that may be in another part of the tree, below a top of its own: one that this top, or its top, could not
// reach for a while. Of two tops the one with the higher number attaches to the other's part.
uint32_t Job::other_part() const {
  if (!tree_.is_top() || state_ != State::kRunning) return kNobody;
  for (uint32_t process = 0; process < own_.process && process < tree_.size(); ++process) {
    if (lost_.count(process) != 0 || silent_.count(process) != 0 || tree_.has_left(process)) continue;
    if (cut_at(process) != own_.process && !tree_.is_child(process)) return process;
  }
  return kNobody;
}

void Job::look_for_other_part() {
  if (is_dialing() || seeks_parent()) return;
  if (const uint32_t process = other_part(); process != kNobody) try_parents({tree_.place(process)}, "");
}

// Nobody is told of the end of a process that never held a rank: the top asks whoever hung from it, and has not come back,
// whether it is there. Of those below one that had left some have left, too, as nobody else may know: they are not asked.
void Job::look_for_missing() {
  if (!tree_.is_top() || state_ != State::kRunning) return;
  const auto now = Clock::now();
  const auto before = std::exchange(adrift_, {});
  for (uint32_t process : below_gone_relays()) {
    if (cut_at(process) == own_.process) continue;
    const auto known = before.find(process);
    const auto since = adrift_[process] = known == before.end() ? now : known->second;
    if (now - since >= kProbeAfter) probe(process);
  }
}

// The connection to a neighbour has ended: has the neighbour? If it lives it comes back, here or elsewhere in the tree.
void Job::examine(uint32_t process) {
  const auto found = broken_.find(process);
  if (closed_ || found == broken_.end()) return;
  const Broken& broken = found->second;
  if (broken.pid > 0 && process_has_ended(broken.pid))
    return report_loss(process, fmt::format("its process has ended without leaving ({})", broken.reason));
  const bool patient = Clock::now() - broken.since < kReturnPatience;
  if (state_ != State::kRunning && !patient)  // its addresses are not known here
    return report_loss(process, fmt::format("its connection has ended ({}), and it has not come back", broken.reason));
  start_ticking();
  if (state_ == State::kRunning && (broken.pid == 0 || !patient)) return probe(process);
  agent_->after(broken.pid > 0 ? kDeathPeriod : kReturnPatience,
                [self = shared_from_this(), process] { self->examine(process); });
}

// Only a refusal at all addresses of a process says that it has ended: one that is stopped does not answer.
void Job::probe(uint32_t process) {
  if (probes_.count(process) != 0 || probes_.size() >= kMaxProbes) return;
  auto done = [self = shared_from_this(), process](const Status& status, bool gone,
                                                   const std::shared_ptr<Channel>& channel) {
    self->probes_.erase(process);
    if (channel) channel->close();
    const auto broken = self->broken_.find(process);
    const bool is_broken = broken != self->broken_.end();
    if (self->closed_ || (!is_broken && self->adrift_.count(process) == 0)) return;
    if (!status.ok() && gone) {
      // A firewall may refuse for a moment, too.
      if (is_broken && Clock::now() - broken->second.since < kReturnPatience)
        return (void)self->agent_->after(kReturnPatience, [self, process] { self->examine(process); });
      return self->report_loss(
          process,
          fmt::format("{}nothing listens at its addresses any more: it has ended, or has closed its sockets",
                      is_broken ? fmt::format("its connection has ended ({}), and ", broken->second.reason) : ""));
    }
    if (self->cut_at(process) != kNobody) return;  // the silence of who is on the way says enough
    // This process has found another parent: that one need not come back here.
    if (status.ok() && is_broken && broken->second.was_parent && self->tree_.has_parent()) self->broken_.erase(broken);
    if (status.ok()) return self->report_heard(process);
    if (status.code() != trTimeout || self->silent_.count(process) != 0) return;
    self->notify({.type = NoticeType::kSilent, .process = process, .text = "its process does not answer"});
  };
  probes_[process] = Dial::start(agent_, find_candidates(own_, agent_->interfaces(), tree_.place(process), false, 0),
                                 id_.job, id_.secret, Clock::now() + kSilence, std::move(done));
}

// Says a loss or a silence in words. The process that noticed it may not have known its ranks yet; this process may.
std::string Job::said_of(const NoticeMessage& notice) const {
  return fmt::format("{}: {}", tree_.describe(notice.process), notice.text);
}

void Job::publish_silence() {
  std::vector<SilentRanks> all;
  for (const auto& [process, entry] : silent_)
    if (!entry.ranks.empty()) all.push_back(entry);
  for (auto& [rank, member] : members_) member->change([&, &member = member] { member->silent = all; });
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
  if (state_ == State::kMeeting && all_left && !root_) return finish();
  maybe_finish();
}

}  // namespace treering
