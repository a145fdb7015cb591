// SPDX-License-Identifier: Apache-2.0
#include "failure/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/log.h"

namespace treering {
namespace {

constexpr auto kCallsPeriod = std::chrono::milliseconds(1);
constexpr auto kAlivePeriod = std::chrono::milliseconds(20);
// Peers at which one look is aimed. With more, the periods above are for each so many.
constexpr uint32_t kLookedAt = 64;
constexpr auto kGraceOfLost = std::chrono::milliseconds(150);
// For a proposal's way through the control tree. A parent in it that is silent, or gone, is replaced meanwhile.
constexpr auto kAgreementTimeout = kLongestSearch + std::chrono::seconds(3);
constexpr auto kAftermathOfPause = std::chrono::seconds(10);  // what is found later has other causes
// A link may have ended because of a failure, the news of which goes by the control tree: over slow links it comes
// later than the end. Within a host the death of its process shows soon.
constexpr auto kNewsOfHost = std::chrono::milliseconds(50), kNewsOfOthers = std::chrono::milliseconds(3000);
constexpr Clock::duration kSilenceTimeout = std::chrono::milliseconds(700);  // with ranks that are asked
constexpr auto kAnswerTimeout = std::chrono::seconds(1);

int looks_for_all(size_t ranks) { return static_cast<int>((ranks + kLookedAt - 1) / kLookedAt); }

}  // namespace

Watch::Watch(ExecutorContext* context, const StatusReader* statuses, FailureRecord* failure,
             std::shared_ptr<const std::vector<PeerIdentity>> peers, WaitTimes times, std::string communicator_name,
             Membership* job, bool one_failure)
    : context_(context),
      looks_for_all_(looks_for_all(peers->size())),
      timeout_(times.timeout_ms),
      call_(context->status),
      peers_(context, statuses, peers, job, timeout_),
      comparison_(context->status, &peers_, &call_),
      diagnosis_(context->status, &peers_, &call_, peers->size(), looks_for_all_ == 1),
      agreement_(failure, &context->status->failure, std::move(communicator_name),
                 job != nullptr && !one_failure
                     ? [job](uint32_t code, const std::string& text) { job->spread(code, text); }
                     : FailureAgreement::Broadcast()),
      reads_failures_(job == nullptr && failure == &context->status->failure),
      job_(job),
      warning_(std::chrono::milliseconds(times.warn_ms)) {}

void Watch::start(const Call* call) {
  call_.start(call);
  clock_runs_ = false;  // the clock is read only when the first check comes
}

Clock::time_point Watch::deadline_of_wait(Clock::time_point begin) const {
  return timeout_.count() > 0 ? std::min(begin + timeout_, call_deadline_) : call_deadline_;
}

Clock::time_point Watch::agreement_limit(Clock::time_point now) const {
  const Clock::duration news = time_for_news(lateness_, job_ != nullptr ? job_->reach() : Clock::duration());
  Clock::time_point limit = now + kAgreementTimeout;
  const auto begin = clock_runs_ || call_.is_creation() ? waits_since_ : now;
  if (timeout_.count() > 0) limit = std::min(limit, begin + timeout_ + news);
  if (call_deadline_ != Clock::time_point::max()) limit = std::min(limit, call_deadline_ + news);
  return std::max(limit, now + news);
}

Status Watch::fail(const Status& status) {
  const bool has_cause = status.code() == trInvalidUsage;  // calls that differ
  return pass_on(has_cause ? status : Status(status.code(), own_pause() + status.message()));
}

Status Watch::pass_on(const Status& status) {
  const auto now = Clock::now();
  agreement_.propose(status, agreement_limit(now));
  return agreement_.poll(now);
}

// What this rank finds after a pause that the others did not wait for is a consequence: they have left, or taken it for
// lost.
std::string Watch::own_pause() const {
  if (job_ == nullptr || timeout_.count() <= 0) return {};
  const auto [length, end] = job_->own_pause();
  const auto since = Clock::now() - end;
  if (length < timeout_ / 2 || since > kAftermathOfPause) return {};
  return fmt::format(
      "{} did not run for {:.1f} s, until {:.1f} s ago (it was stopped, or got no processor; the deadline is {:g} s). "
      "It found since: ",
      peers_.describe(context_->rank), seconds(length), seconds(since), seconds(timeout_));
}

// Like agreement_limit(), for threads that do not know how late the one that waits is. Where nothing runs to a deadline,
// the agreement has what a wait that begins now would have.
void Watch::propose(const Status& status, std::optional<Clock::time_point> deadline) {
  const auto now = Clock::now();
  auto end = std::min(deadline.value_or(Clock::time_point::max()), wait_ends_.load(std::memory_order_relaxed));
  if (timeout_.count() > 0) end = std::min(end, now + timeout_);
  const Clock::duration left = end - now + kMaxNewsTime;
  agreement_.propose(status, now + std::clamp<Clock::duration>(left, kMaxNewsTime, kAgreementTimeout));
}

Status Watch::poll() {
  const auto now = Clock::now();
  if (!agreement_.proposed() && agreement_.decided().ok()) {
    if (Status other = peer_verdict(); !other.ok()) return pass_on(other);
    judge_suspicion(now);
  }
  return agreement_.poll(now);
}

Status Watch::settled_verdict() { return agreement_.settle(kWriterTimeout); }

Status Watch::await_failure(const Serve& serve) {
  for (;; usleep(500)) {
    if (Status status = poll(); !status.ok()) return status;
    serve();
  }
}

// One that leaves because of a failure tells which: who hears of the end before the failure does not take it for the
// cause. It may not be decided yet: another may have come first.
void Watch::note_left(uint32_t rank, const Status& cause) {
  peers_.note_left(rank, cause);
  if (!cause.ok()) propose(cause);
}

Status Watch::creation_verdict() {
  if (Status known = poll(); !known.ok() || agreement_.proposed()) return known;
  std::optional<uint32_t> lost;
  for (const auto& [peer, loss] : peers_.losses())
    if (!loss.left) lost = peer;
  return lost ? fail(peers_.find_lost(*lost, call_.place())) : Status();
}

// The failure of a peer, where ranks do not share the verdict's memory.
Status Watch::peer_verdict() {
  if (!reads_failures_) return agreement_.decided();
  RankStatusSnapshot snapshot;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer)
    if (peers_.read(peer, &snapshot) && snapshot.failed) return peers_.failure_of(snapshot);
  return {};
}

Status Watch::check(uint32_t waiting_for, uint64_t steps) {
  auto now = Clock::now();
  if (Status status = agreement_.poll(now); !status.ok() || in_doubt()) return status;
  if (!clock_runs_) {
    clock_runs_ = true;
    wait_time_.begin(now, steps);
    waits_since_ = now;
    is_cut_off_ = false;
    lateness_ = {};
    next_calls_check_ = now + looks_for_all_ * kCallsPeriod;
    next_alive_check_ = now + looks_for_all_ * kAlivePeriod;
    diagnosis_.begin(now);
    return {};
  }
  if (now < next_calls_check_) return {};
  const Clock::duration late = now - next_calls_check_;
  lateness_ = wait_time_.look(now, steps) ? Clock::duration() : std::max(lateness_, late);
  next_calls_check_ = now + looks_for_all_ * kCallsPeriod;
  RankStatus& own = *context_->status;
  own.heartbeat.fetch_add(1, std::memory_order_relaxed);
  own.steps.store(steps, std::memory_order_relaxed);
  own.waiting_for.store(waiting_for == context_->rank ? 0 : waiting_for + 1, std::memory_order_relaxed);
  if (call_.is_counted()) TR_RETURN_IF_ERROR(check_calls(waiting_for));
  note_wait(waiting_for);
  if (now >= next_alive_check_) {
    next_alive_check_ = now + looks_for_all_ * kAlivePeriod;
    if (Status status = peer_verdict(); !status.ok()) return pass_on(status);
    const uint32_t first = next_alive_;
    TR_RETURN_IF_ERROR(look_at_some(first, &next_alive_, waiting_for, [this](uint32_t peer) {
      diagnosis_.look(peer);
      return Status();
    }));
    TR_RETURN_IF_ERROR(check_lost(waiting_for));
    TR_RETURN_IF_ERROR(
        look_at_some(first, &next_alive_, waiting_for, [&](uint32_t peer) { return check_alive(peer, waiting_for); }));
    if (call_.is_counted()) consider_warning(waiting_for, now, late);
  }
  if ((timeout_.count() > 0 && now - waits_since_ >= timeout_) || now >= call_deadline_)
    return fail(deadline_verdict(waiting_for));
  return {};
}

void Watch::note_wait(uint32_t waiting_for) {
  const SendQueue* queue = context_->find_queue(waiting_for);
  waits_since_ = wait_time_.since(queue != nullptr ? queue->away_since() : std::nullopt);
  is_cut_off_ = waits_since_ != wait_time_.since({});
  wait_ends_.store(deadline_of_wait(waits_since_), std::memory_order_relaxed);
}

// The rank that is waited for, and those whose turn it is. One rank at a time is asked by a message, where
// that is the only way: an answer costs messages.
template <typename Look>
Status Watch::look_at_some(uint32_t first, uint32_t* next, uint32_t waiting_for, const Look& look) const {
  const uint32_t ranks = context_->ranks;
  if (ranks > kLookedAt && waiting_for != context_->rank) TR_RETURN_IF_ERROR(look(waiting_for));
  const uint32_t count = std::min(ranks, kLookedAt);
  bool asked = false;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t peer = (first + i) % ranks;
    if (ranks > kLookedAt && peer == waiting_for) continue;  // its messages are looked for between two looks
    if (ranks > kLookedAt && !peers_.knows_by_reading(peer) && std::exchange(asked, true)) continue;
    TR_RETURN_IF_ERROR(look(peer));
  }
  *next = (first + count) % ranks;
  return {};
}

Status Watch::check_calls(uint32_t waiting_for) {
  return look_at_some(next_call_, &next_call_, waiting_for, [this](uint32_t peer) {
    const Status same = comparison_.check_mapped(peer);
    return same.ok() ? same : fail(same);
  });
}

// Messages of a lost rank may still be on their way: it counts after a while, and when it has not done its part.
Status Watch::check_lost(uint32_t waiting_for) {
  if (job_ == nullptr) return {};
  for (const auto& [peer, loss] : peers_.losses()) {
    if (loss.left) continue;  // its link tells when a message of it is missing
    if ((!call_.is_counted() && peer != waiting_for) || Clock::now() - loss.when < kGraceOfLost) continue;
    RankStatusSnapshot snapshot;
    const bool known = peers_.read(peer, &snapshot);
    if (call_.is_counted() && known && snapshot.completed >= call_.number()) continue;
    // An answer may be older than what it did last.
    const std::string last = known && peers_.knows_by_reading(peer)
                                 ? fmt::format("; its last completed operation is {}", snapshot.completed)
                                 : "";
    return fail({trRemoteError,
                 fmt::format("{} was lost in or before {}: {}{}. Rank {} waited for rank {}", peers_.describe(peer),
                             call_.place(), loss.reason, last, context_->rank, waiting_for)});
  }
  return {};
}

Status Watch::check_alive(uint32_t peer, uint32_t waiting_for) {
  RankStatusSnapshot snapshot;
  if (peer == context_->rank || (!call_.is_counted() && peer != waiting_for)) return {};
  const bool readable = peers_.read(peer, &snapshot);
  if (!readable && !peers_.knows_by_reading(peer)) return {};
  // Twice, as what the kernel copies from another process is not promised to be of one moment.
  if (readable && call_.is_counted() && comparison_.first_difference(snapshot) && peers_.read(peer, &snapshot) &&
      comparison_.first_difference(snapshot))
    return fail(comparison_.calls_differ(peer, snapshot));
  if (readable && call_.is_counted() && snapshot.completed >= call_.number()) return {};  // it has done its part
  if (!readable && peer != waiting_for) return {};
  if (readable && snapshot.left) {
    if (snapshot.failed) return pass_on(peers_.failure_of(snapshot));
    // An answer may overtake what was sent before it: the link tells when a message is missing.
    if (!peers_.knows_by_reading(peer)) return {};
    // What it sent before it left is here, but may have come since this rank looked for it.
    if (!diagnosis_.note_gone(peer)) return {};
    return fail({trRemoteError, fmt::format("{} destroyed its communicator before {} was complete",
                                            peers_.describe(peer), call_.place())});
  }
  // What was asked may be old: one that has ended since may have done its part, and left. The control tree tells of
  // losses.
  bool dead = !readable || (peers_.knows_by_reading(peer) && peers_.is_dead(peer));
  // It may have done its part, left and ended after it was asked: what memory says of it now is its last.
  if (readable && dead && peers_.read(peer, &snapshot))
    dead = !snapshot.left && !(call_.is_counted() && snapshot.completed >= call_.number());
  // What it sent before its end is here, but may have come since this rank looked for it.
  if (!dead || !diagnosis_.note_gone(peer)) return {};
  const std::string completed = readable ? std::to_string(snapshot.completed) : "unknown";
  const Status end = peers_.end_of(peer, call_.place(), "; its last completed operation is " + completed);
  return end.ok() ? end : fail(end);
}

Status Watch::check_peer(uint32_t peer, const char* during) {
  // The cause alone would be taken for what this call found.
  const auto has_left_since = [&](const Status& cause) -> Status {
    return {cause.code(), fmt::format("{}. {} has left since, and takes no part in {}", cause.message(),
                                      peers_.describe(peer), during)};
  };
  RankStatusSnapshot snapshot;
  const bool readable = peers_.read(peer, &snapshot);
  const auto loss = peers_.loss_of(peer);
  if (loss && loss->left && !loss->cause.ok()) return has_left_since(loss->cause);
  if (Status lost = peers_.find_lost(peer, during); !lost.ok()) return lost;
  if (readable && snapshot.left) {
    const Status cause = snapshot.failed ? peers_.failure_of(snapshot) : agreement_.known();
    return cause.ok() ? peers_.left(peer, during, {}) : has_left_since(cause);
  }
  if (peer != context_->rank && ((!readable && peers_.knows_by_reading(peer)) || peers_.is_dead(peer)))
    return peers_.end_of(peer, during, "");
  return {};
}

Status Watch::deadline_verdict(uint32_t waiting_for) {
  trResult_t code = trTimeout;
  const std::string who = diagnosis_.who_holds_up(waiting_for, &code);
  const std::string what =
      is_cut_off_ ? fmt::format("no connection to {}", peers_.describe(waiting_for)) : "no progress";
  return {code, fmt::format("{} within {:g} s in {}: {}. {}", what, seconds(timeout_), call_.place(), who,
                            diagnosis_.who_waited_for(waiting_for, who))};
}

void Watch::suspect_link(uint32_t peer, const Status& status) {
  if (in_doubt()) return;
  if (peer == context_->rank) return (void)fail(status);
  const auto now = Clock::now();
  auto until = now + (peers_.same_host(peer) ? kNewsOfHost : kNewsOfOthers);
  if (clock_runs_) note_wait(peer);
  const auto begin = clock_runs_ || call_.is_creation() ? waits_since_ : now;
  if (timeout_.count() > 0) until = std::min(until, std::max(now + kNewsOfHost, begin + timeout_));
  suspicion_ = {Suspicion::Kind::kLink, peer, status, until};
}

void Watch::suspect_calls(uint32_t peer, const std::optional<TransferSizes>& sizes) {
  if (in_doubt()) return;
  if (sizes && !sizes->expected) return (void)fail(comparison_.meets_send(peer, *sizes->sent));
  if (sizes && (sizes->sent || !call_.is_counted())) return (void)fail(comparison_.transfers_differ(peer, *sizes));
  suspicion_ = {Suspicion::Kind::kCalls, peer, {}, Clock::now() + kAnswerTimeout};
  judge_calls(Clock::now());
}

void Watch::judge_suspicion(Clock::time_point now) {
  switch (suspicion_.kind) {
    case Suspicion::Kind::kNone:
      return;
    case Suspicion::Kind::kLink:
      return judge_link(now);
    case Suspicion::Kind::kCalls:
      return judge_calls(now);
  }
}

// A peer that dies takes its memory away shortly before it counts as dead; the news of it takes its way, too.
void Watch::judge_link(Clock::time_point now) {
  const uint32_t peer = suspicion_.peer;
  const Status& status = suspicion_.status;
  RankStatusSnapshot last;
  const bool readable = peers_.read(peer, &last);
  Status news = peers_.find_lost(peer, call_.place());
  if (news.ok() && readable && last.left) news = peers_.left(peer, call_.place(), peers_.failure_of(last));
  if (news.ok() && peers_.is_dead(peer)) {
    news = peers_.end_of(peer, call_.place(), ": " + status.message());
    if (news.ok()) return;
  }
  if (!news.ok()) {
    // A call that failed in this process need not come of a peer that left in order.
    if (status.code() == trSystemError && peers_.has_left_in_order(peer))
      news = {news.code(), fmt::format("{}. The connection of {} to it failed: {}", news.message(),
                                       peers_.describe(context_->rank), status.message())};
    return (void)fail(news);
  }
  // The memory of a process that lives has gone: it leaves, and the job tells so.
  const bool has_gone = job_ != nullptr && peers_.knows_by_reading(peer) && !readable;
  if (now >= suspicion_.until + (has_gone ? peers_.time_for_end() : Clock::duration()))
    (void)fail(
        {status.code(), fmt::format("the connection of {} to {} failed in {}: {}", peers_.describe(context_->rank),
                                    peers_.describe(peer), call_.place(), status.message())});
}

// What the peer called, from its memory at once, else from its answer.
void Watch::judge_calls(Clock::time_point now) {
  const uint32_t peer = suspicion_.peer;
  const auto answered_at = peers_.answered_at(peer);
  const bool answered = answered_at && *answered_at > suspicion_.until - kAnswerTimeout;
  RankStatusSnapshot other;
  const bool readable = peers_.read(peer, &other);
  // What it answered before may be of an earlier operation.
  if (readable && (peers_.knows_by_reading(peer) || other.operation >= call_.number() ||
                   comparison_.first_difference(other).has_value()))
    return (void)fail(comparison_.calls_differ(peer, other));
  if (peers_.knows_by_reading(peer))
    return (void)fail({trRemoteError, fmt::format("{} is gone in or before {}", peers_.describe(peer), call_.place())});
  if (now < suspicion_.until) return;
  (void)fail(comparison_.called_something_else(peer, answered && readable ? &other : nullptr));
}

Clock::duration Watch::time_for_answers(Clock::duration deadline) { return std::min(kSilenceTimeout, deadline / 4); }

Status Watch::late(const char* function, const std::vector<uint32_t>& members,
                   const std::function<std::string()>& otherwise) const {
  const std::string silent = peers_.silence(&members);
  return {trTimeout, fmt::format("{}: {}", function, silent.empty() ? otherwise() : "the deadline passed: " + silent)};
}

Status Watch::no_progress(uint32_t peer, const std::vector<uint32_t>& ranks, const Serve& serve) {
  const auto asked = Clock::now();
  std::vector<uint32_t> unresponsive = ranks;
  std::erase(unresponsive, context_->rank);
  constexpr auto pause = std::chrono::milliseconds(1);
  for (auto next = asked; !unresponsive.empty() && next < asked + kSilenceTimeout && peers_.silence().empty();) {
    std::this_thread::sleep_until(next);
    lateness_ = std::max(lateness_, Clock::now() - next);
    next = Clock::now() + pause;
    if (Status known = agreement_.decided(); !known.ok()) return known;
    serve();
    std::erase_if(unresponsive, [&](uint32_t rank) {
      peers_.ask(rank);
      const auto answered = peers_.answered_at(rank);
      return answered && *answered > asked;
    });
  }
  std::string who = peers_.silence();
  for (uint32_t rank : who.empty() ? unresponsive : std::vector<uint32_t>())
    who += fmt::format("{}{} does not answer", who.empty() ? "" : "; ", peers_.describe(rank));
  if (who.empty()) who = diagnosis_.chain_of_waits(peer, true);
  (void)fail({trTimeout, fmt::format("no progress within {:g} s in {}: {}. {}", seconds(timeout_), call_.place(), who,
                                     diagnosis_.who_waited_for(peer, who))});
  return await_failure(serve);
}

void Watch::consider_warning(uint32_t waiting_for, Clock::time_point now, Clock::duration late) {
  const std::optional<Clock::time_point> asked = warning_.asked();
  switch (warning_.look(now, waits_since_, late)) {
    case WaitWarning::Next::kNothing:
      if (asked) diagnosis_.ask_others(*asked);
      return;
    case WaitWarning::Next::kAsk:
      return diagnosis_.speaks_for_others() ? diagnosis_.ask_others(now) : warning_.leave_to_others();
    case WaitWarning::Next::kSay:
      return warn_of_wait(waiting_for, now, *asked);
  }
}

void Watch::warn_of_wait(uint32_t waiting_for, Clock::time_point now, Clock::time_point asked) {
  std::string who = diagnosis_.unanswered(asked);
  trResult_t code = trSuccess;  // of an error, which a warning is not
  if (who.empty()) who = diagnosis_.who_holds_up(waiting_for, &code);
  const std::string limit =
      timeout_.count() > 0 ? fmt::format("the deadline is {:g} s", seconds(timeout_)) : "there is no deadline";
  const std::string what =
      is_cut_off_ ? fmt::format("has had no connection to {}", peers_.describe(waiting_for)) : "has not moved";
  const double waited = seconds(warning_.waited(now, waits_since_));
  const LogRank line_has_it(context_->rank);
  log_line(LogLevel::kWarn, fmt::format("{}{} {} for {:.1f} s ({}): {}. Rank {} waits for rank {}", agreement_.prefix(),
                                        call_.place(), what, waited, limit, who, context_->rank, waiting_for));
}

}  // namespace treering
