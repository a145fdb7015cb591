// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/liveness.h"

#include <fmt/format.h>

#include <utility>

#include "core/log.h"
#include "core/process.h"

namespace treering {
namespace {

constexpr auto kTick = std::chrono::milliseconds(500);
constexpr auto kHeartbeatPeriod = std::chrono::milliseconds(1000);
constexpr size_t kMaxProbes = 16;
constexpr const char* kDoesNotAnswer = "its process does not answer";

// What a process has answered to a probe that ended so.
FailureDetector::Answer answer_of(const Status& status, DialEnd end) {
  using Answer = FailureDetector::Answer;
  if (status.ok()) return Answer::kListens;
  if (end == DialEnd::kRefused) return Answer::kRefuses;
  if (end == DialEnd::kNoSuchJob) return Answer::kHasNoJob;
  return status.code() == trTimeout ? Answer::kNone : Answer::kFailed;
}

}  // namespace

void Liveness::start_ticking() {
  if (tick_timer_.is_set() || job_.closed) return;
  last_tick_ = Clock::now();
  members_.ticks(last_tick_);
  tick_timer_.set(kTick, [this] { tick(); });
}

void Liveness::tick() {
  const auto now = Clock::now();
  const OwnPause pause{now - last_tick_, now};
  const bool was_asleep = pause.length > kOwnPause;
  members_.ends_tick(was_asleep ? &pause : nullptr);
  if (job_.closed || detector_.is_idle(job_.runs(), now)) return;
  const bool heartbeat_due = now - last_heartbeat_ >= kHeartbeatPeriod;
  if (heartbeat_due) last_heartbeat_ = now;
  for (uint32_t process : tree_.neighbours()) {
    if (!connections_.has(process)) continue;
    if (heartbeat_due) connections_.send(process, encode(HeartbeatMessage{}));
    if (was_asleep) connections_.forgive_silence(process);
    listen(process, now - connections_.heard(process));
  }
  if (job_.runs()) look_at_the_tree(now);
  events_.ticked();
  start_ticking();
}

void Liveness::listen(uint32_t neighbour, Clock::duration silence) {
  if (silence >= kSilence && !job_.runs()) {
    // Ranks may be late, which says nothing of them. But a network may drop what comes by one address alone.
    if (job_.meets() && tree_.is_parent(neighbour)) events_.parent_silent();
    return;
  }
  const FailureDetector::Hearing hearing = detector_.listen(neighbour, silence);
  if (hearing.change == FailureDetector::Change::kAnswersAgain) {
    if (hearing.warn)
      log_line(LogLevel::kWarn, fmt::format("{}: its process answers again", tree_.describe(neighbour)));
    if (hearing.spread) report_heard(neighbour);
  } else if (hearing.change == FailureDetector::Change::kFellSilent) {
    if (drop_deserter(neighbour)) return;
    if (hearing.warn)
      log_line(LogLevel::kWarn, fmt::format("{}: its process has not answered for {:.1f} s", tree_.describe(neighbour),
                                            seconds(silence)));
    const auto length = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
    if (hearing.spread)
      events_.notify({.type = NoticeType::kSilent,
                      .process = neighbour,
                      .other = static_cast<uint32_t>(length),
                      .text = kDoesNotAnswer});
    if (tree_.is_parent(neighbour)) events_.parent_silent();
  }
}

// A child that has another parent cannot say so by a connection that passes nothing on, and no message for it must go
// there any more.
bool Liveness::drop_deserter(uint32_t child) {
  if (!tree_.is_child(child) || !detector_.is_unheard(child) || tree_.parent_of(child) == tree_.own()) return false;
  connections_.end(child);
  return true;
}

void Liveness::look_at_the_tree(Clock::time_point now) {
  for (NoticeMessage& notice : detector_.cut_off(now)) events_.notify(std::move(notice));
  if (!job_.runs()) return;  // a loss may have ended an exchange
  events_.looked();
  if (const uint32_t process = detector_.other_part(now); process != kNobody) events_.other_part(process);
  for (uint32_t process : detector_.overdue(now)) probe(process);
  if (const auto process = detector_.next_unreached(now)) probe(*process);
  for (uint32_t process : detector_.missing(now)) probe(process);
}

void Liveness::examine(uint32_t process) {
  if (job_.closed) return;
  const pid_t pid = detector_.pid_of_broken(process);
  take_step(process, detector_.examine(process, pid > 0 && process_has_ended(pid), job_.runs(), Clock::now()));
}

void Liveness::take_step(uint32_t process, const FailureDetector::Step& step) {
  using Next = FailureDetector::Step::Next;
  if (step.next == Next::kExamineAgain || step.next == Next::kProbe) start_ticking();
  switch (step.next) {
    case Next::kNothing:
      return;
    case Next::kExamineAgain:
      job_.after(step.after, [this, process] { examine(process); });
      return;
    case Next::kProbe:
      return probe(process);
    case Next::kTellHeard:
      return report_heard(process);
    case Next::kAttach:
      return events_.other_part(process);
    case Next::kTellSilent:
      return events_.notify({.type = NoticeType::kSilent, .process = process, .text = kDoesNotAnswer});
    case Next::kTellLost:
      if (detector_.conclude_loss(process))
        events_.notify({.type = NoticeType::kLost, .process = process, .text = step.text});
      return;
  }
}

// Asks at its addresses whether it is there.
void Liveness::probe(uint32_t process) {
  if (probes_.count(process) != 0 || probes_.size() >= kMaxProbes) return;
  auto done = [this, process](const Status& status, DialEnd end, const std::shared_ptr<SecureConnection>& connection) {
    probes_.erase(process);
    if (connection) connection->close();
    if (job_.closed) return;
    take_step(process, detector_.probed(process, answer_of(status, end), Clock::now()));
  };
  probes_[process] = job_.dial(tree_.place(process), Clock::now() + kSilence, std::move(done));
}

void Liveness::report_heard(uint32_t process) {
  if (!detector_.is_silent(process) && process != tree_.own()) return;
  events_.notify({.type = NoticeType::kHeard, .process = process});
}

bool Liveness::take_loss(uint32_t process) {
  if (!detector_.take_loss(process, Clock::now())) return false;
  take_heard(process);
  return true;
}

void Liveness::take_silence(const NoticeMessage& notice) {
  if (notice.process == tree_.own()) return report_heard(tree_.own());
  if (detector_.take_silence(notice, Clock::now())) publish_silence();
}

void Liveness::take_heard(uint32_t process) {
  if (detector_.take_heard(process)) publish_silence();
}

void Liveness::take_move(uint32_t process) {
  if (detector_.take_move(process)) publish_silence();
  (void)drop_deserter(process);
}

void Liveness::publish_silence() {
  const std::vector<SilentRanks> all = detector_.silent_ranks();
  const std::optional<SilentRanks> relay = detector_.silent_relay();
  members_.change([&](Member& member) {
    member.silent = all;
    member.silent_relay = relay;
  });
}

void Liveness::close() {
  tick_timer_.cancel();
  members_.change([](Member& member) { member.ticked.reset(); });
  for (const auto& [process, dial] : std::exchange(probes_, {})) dial->cancel();
}

}  // namespace treering
