// SPDX-License-Identifier: Apache-2.0
#include "failure/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/process.h"

namespace treering {
namespace {

constexpr auto kCallsPeriod = std::chrono::milliseconds(1);
constexpr auto kAlivePeriod = std::chrono::milliseconds(20);
// Peers at which one look is aimed. With more, the periods above are for each so many.
constexpr uint32_t kLookedAt = 64;
constexpr auto kGraceOfLost = std::chrono::milliseconds(150);
// From the end of a process until the job tells how it ended.
constexpr Clock::duration kNewsOfEnd = std::chrono::seconds(1);
// For a proposal's way through the control tree. A parent in it that is silent, or gone, is replaced meanwhile.
constexpr auto kAgreementTimeout = kLongestSearch + std::chrono::seconds(3);
constexpr int kToldDeaths = 8;
constexpr auto kAftermathOfPause = std::chrono::seconds(10);  // what is found later has other causes
// A link may have ended because of a failure, the news of which goes by the control tree: over slow links it comes
// later than the end. Within a host the death of its process shows soon.
constexpr auto kNewsOfHost = std::chrono::milliseconds(50), kNewsOfOthers = std::chrono::milliseconds(3000);

}  // namespace

Watch::Watch(ExecutorContext* context, const StatusReader* statuses, FailureRecord* failure,
             std::shared_ptr<const std::vector<PeerIdentity>> peers, WaitTimes times, std::string communicator_name,
             Membership* job, bool one_failure)
    : context_(context),
      statuses_(statuses),
      peers_(std::move(peers)),
      seen_(peers_->size()),
      crowd_(static_cast<int>((peers_->size() + kLookedAt - 1) / kLookedAt)),
      timeout_(times.timeout_ms),
      agreement_(failure, &context->status->failure, std::move(communicator_name),
                 job != nullptr && !one_failure
                     ? [job](uint32_t code, const std::string& text) { job->spread(code, text); }
                     : FailureAgreement::Broadcast()),
      reads_failures_(job == nullptr && failure == &context->status->failure),
      job_(job),
      warning_(std::chrono::milliseconds(times.warn_ms)) {}

void Watch::start(const Call* call) {
  call_ = call;
  counted_ = call->operation != 0;
  clock_runs_ = false;  // the clock is read only when the first check comes
}

Clock::time_point Watch::deadline_of_wait(Clock::time_point begin) const {
  return timeout_.count() > 0 ? std::min(begin + timeout_, call_deadline_) : call_deadline_;
}

Clock::time_point Watch::agreement_limit(Clock::time_point now) const {
  const Clock::duration news = time_for_news(lateness_, job_ != nullptr ? job_->reach() : Clock::duration());
  Clock::time_point limit = now + kAgreementTimeout;
  const auto begin = clock_runs_ || call_ == nullptr ? waits_since_ : now;
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
      "{} did not run for {:.1f} s, until {:.1f} s ago (it was stopped, or got no processor; the deadline is {} ms). "
      "It found since: ",
      describe(context_->rank), std::chrono::duration<double>(length).count(),
      std::chrono::duration<double>(since).count(), timeout_.count());
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

void Watch::note_lost(const std::vector<uint32_t>& ranks, const std::string& reason) {
  std::lock_guard lock(lost_mutex_);
  for (uint32_t rank : ranks) lost_.try_emplace(rank, Loss{reason, Clock::now()});
}

// One that leaves because of a failure tells which: who hears of the end before the failure does not take it for the
// cause. It may not be decided yet: another may have come first.
void Watch::note_left(uint32_t rank, const Status& cause) {
  {
    std::lock_guard lock(lost_mutex_);
    lost_.try_emplace(rank, Loss{"", Clock::now(), true, cause});
  }
  if (!cause.ok()) propose(cause);
}

Status Watch::find_lost(uint32_t peer, const std::string& during) const {
  std::lock_guard lock(lost_mutex_);
  const auto found = lost_.find(peer);
  if (found == lost_.end()) return {};
  if (found->second.left) return left(peer, during, found->second.cause);
  return {trRemoteError, fmt::format("{} was lost in or before {}: {}", describe(peer), during, found->second.reason)};
}

Status Watch::creation_verdict() {
  if (Status known = poll(); !known.ok() || agreement_.proposed()) return known;
  std::optional<uint32_t> lost;
  {
    std::lock_guard lock(lost_mutex_);
    for (const auto& [peer, loss] : lost_)
      if (!loss.left) lost = peer;
  }
  return lost ? fail(find_lost(*lost, operation_text())) : Status();
}

void Watch::suspect_link(uint32_t peer, const Status& status) {
  if (in_doubt()) return;
  if (peer == context_->rank) return (void)fail(status);
  const auto now = Clock::now();
  auto until = now + (same_host(peer) ? kNewsOfHost : kNewsOfOthers);
  if (clock_runs_) note_wait(peer);
  const auto begin = clock_runs_ || call_ == nullptr ? waits_since_ : now;
  if (timeout_.count() > 0) until = std::min(until, std::max(now + kNewsOfHost, begin + timeout_));
  suspicion_ = {Suspicion::Kind::kLink, peer, status, until};
}

// The failure of a peer, where ranks do not share the verdict's memory.
Status Watch::peer_verdict() {
  if (!reads_failures_) return agreement_.decided();
  RankStatusSnapshot snapshot;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer)
    if (read(peer, &snapshot) && snapshot.failed) return failure_of(snapshot);
  return {};
}

bool Watch::read(uint32_t peer, RankStatusSnapshot* snapshot) const {
  if (peer == context_->rank) {
    *snapshot = snapshot_of(*context_->status);
    return true;
  }
  return statuses_->read_status(peer, snapshot);
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
    next_calls_check_ = now + crowd_ * kCallsPeriod;
    next_alive_check_ = now + crowd_ * kAlivePeriod;
    for (Seen& seen : seen_) seen = {.changed = now};
    return {};
  }
  if (now < next_calls_check_) return {};
  const Clock::duration late = now - next_calls_check_;
  lateness_ = wait_time_.look(now, steps) ? Clock::duration() : std::max(lateness_, late);
  next_calls_check_ = now + crowd_ * kCallsPeriod;
  RankStatus& own = *context_->status;
  own.heartbeat.fetch_add(1, std::memory_order_relaxed);
  own.steps.store(steps, std::memory_order_relaxed);
  own.waiting_for.store(waiting_for == context_->rank ? 0 : waiting_for + 1, std::memory_order_relaxed);
  if (counted_) TR_RETURN_IF_ERROR(check_calls(waiting_for));
  note_wait(waiting_for);
  if (now >= next_alive_check_) {
    next_alive_check_ = now + crowd_ * kAlivePeriod;
    if (Status status = peer_verdict(); !status.ok()) return pass_on(status);
    const uint32_t first = next_alive_;
    TR_RETURN_IF_ERROR(look_at_some(first, &next_alive_, waiting_for, [this](uint32_t peer) {
      note_progress(peer);
      return Status();
    }));
    TR_RETURN_IF_ERROR(check_lost(waiting_for));
    TR_RETURN_IF_ERROR(
        look_at_some(first, &next_alive_, waiting_for, [&](uint32_t peer) { return check_alive(peer, waiting_for); }));
    if (counted_) consider_warning(waiting_for, now, late);
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
    if (ranks > kLookedAt && !knows_by_reading(peer) && std::exchange(asked, true)) continue;
    TR_RETURN_IF_ERROR(look(peer));
  }
  *next = (first + count) % ranks;
  return {};
}

// Whether two tags are of one operation that two ranks called differently.
bool Watch::differ(uint64_t ours, uint64_t theirs) {
  return ours != theirs && operation_of(ours) == operation_of(theirs);
}

std::optional<uint64_t> Watch::first_difference(const RankStatusSnapshot& other) const {
  const uint64_t own = call_->operation;
  const uint64_t kept = std::min<uint64_t>(own, kCallsKept);
  for (uint64_t operation = own - kept + 1; operation <= own; ++operation) {
    const uint64_t tag = context_->status->calls[operation % kCallsKept].tag.load(std::memory_order_relaxed);
    if (differ(tag, other.call(operation).tag)) return operation;
  }
  return {};
}

Status Watch::check_calls(uint32_t waiting_for) {
  return look_at_some(next_call_, &next_call_, waiting_for, [this](uint32_t peer) { return check_call(peer); });
}

Status Watch::check_call(uint32_t peer) {
  if (peer == context_->rank) return {};
  const RankStatus* status = statuses_->mapped_status(peer);
  if (status == nullptr) return {};  // reading it costs a system call: check_alive() does, less often
  // Signatures stand for all calls so far: the last that both have made tells.
  const uint64_t both = std::min(call_->operation, status->operation.load(std::memory_order_acquire)) % kCallsKept;
  const uint64_t ours = context_->status->calls[both].tag.load(std::memory_order_relaxed);
  return differ(ours, status->calls[both].tag.load(std::memory_order_acquire))
             ? calls_differ(peer, snapshot_of(*status))
             : Status();
}

void Watch::note_progress(uint32_t peer) {
  RankStatusSnapshot snapshot;
  if (!read(peer, &snapshot)) return;
  Seen& seen = seen_[peer];
  const bool changes = snapshot.heartbeat != seen.heartbeat || snapshot.operation != seen.operation;
  if (seen.known && changes) seen = {snapshot.heartbeat, snapshot.operation, Clock::now(), true, true, seen.gone};
  if (!seen.known) seen = {snapshot.heartbeat, snapshot.operation, seen.changed, true, false, seen.gone};
}

// Messages of a lost rank may still be on their way: it counts after a while, and when it has not done its part.
Status Watch::check_lost(uint32_t waiting_for) {
  if (job_ == nullptr) return {};
  std::map<uint32_t, Loss> lost;
  {
    std::lock_guard lock(lost_mutex_);
    lost = lost_;
  }
  for (const auto& [peer, loss] : lost) {
    if (loss.left) continue;  // its link tells when a message of it is missing
    if ((!counted_ && peer != waiting_for) || Clock::now() - loss.when < kGraceOfLost) continue;
    RankStatusSnapshot snapshot;
    const bool known = read(peer, &snapshot);
    if (counted_ && known && snapshot.completed >= call_->operation) continue;
    // An answer may be older than what it did last.
    const std::string last =
        known && knows_by_reading(peer) ? fmt::format("; its last completed operation is {}", snapshot.completed) : "";
    return fail(
        {trRemoteError, fmt::format("{} was lost in or before {}: {}{}. Rank {} waited for rank {}", describe(peer),
                                    operation_text(), loss.reason, last, context_->rank, waiting_for)});
  }
  return {};
}

Status Watch::check_alive(uint32_t peer, uint32_t waiting_for) {
  RankStatusSnapshot snapshot;
  if (peer == context_->rank || (!counted_ && peer != waiting_for)) return {};
  const bool readable = read(peer, &snapshot);
  if (!readable && !knows_by_reading(peer)) return {};
  // Twice, as what the kernel copies from another process is not promised to be of one moment.
  if (readable && counted_ && first_difference(snapshot) && read(peer, &snapshot) && first_difference(snapshot))
    return calls_differ(peer, snapshot);
  if (readable && counted_ && snapshot.completed >= call_->operation) return {};  // it has done its part
  if (!readable && peer != waiting_for) return {};
  if (readable && snapshot.left) {
    if (snapshot.failed) return pass_on(failure_of(snapshot));
    // An answer may overtake what was sent before it: the link tells when a message is missing.
    if (!knows_by_reading(peer)) return {};
    // What it sent before it left is here, but may have come since this rank looked for it.
    if (!std::exchange(seen_[peer].gone, true)) return {};
    return fail({trRemoteError, fmt::format("{} destroyed its communicator before {} was complete", describe(peer),
                                            operation_text())});
  }
  // What was asked may be old: one that has ended since may have done its part, and left. The control tree tells of
  // losses.
  bool dead = !readable || (knows_by_reading(peer) && is_dead(peer));
  // It may have done its part, left and ended after it was asked: what memory says of it now is its last.
  if (readable && dead && read(peer, &snapshot))
    dead = !snapshot.left && !(counted_ && snapshot.completed >= call_->operation);
  // What it sent before its end is here, but may have come since this rank looked for it.
  if (!dead || !std::exchange(seen_[peer].gone, true)) return {};
  const std::string completed = readable ? std::to_string(snapshot.completed) : "unknown";
  const Status end = end_of(peer, operation_text(), "; its last completed operation is " + completed);
  return end.ok() ? end : fail(end);
}

Status Watch::failure_of(const RankStatusSnapshot& shown) {
  return shown.failed ? Status(static_cast<trResult_t>(shown.failure_code), shown.failure_text) : Status();
}

Clock::duration Watch::time_for_end() const {
  return timeout_.count() > 0 ? std::min<Clock::duration>(timeout_, kNewsOfEnd) : kNewsOfEnd;
}

// What to say of a peer whose process has ended: it left in order where its memory says so, or, where that went with
// it, the job, a moment later; Ok until then.
Status Watch::end_of(uint32_t peer, const std::string& during, const std::string& more) {
  RankStatusSnapshot last;
  const bool readable = knows_by_reading(peer) && read(peer, &last);  // what was answered before its end is old
  if (readable && last.left) return left(peer, during, failure_of(last));
  if (!readable && job_ != nullptr) {
    const auto now = Clock::now();
    const auto seen = ended_.try_emplace(peer, now).first->second;
    std::lock_guard lock(lost_mutex_);
    const auto found = lost_.find(peer);
    if (found != lost_.end() && found->second.left) return left(peer, during, found->second.cause);
    if (found == lost_.end() && now < seen + time_for_end()) return {};
  }
  // Between namespaces of process ids nothing but its memory tells, and may be out of reach for another reason.
  const char* const end = readable || is_dead(peer) ? "has died" : "is gone (its memory cannot be read)";
  return {trRemoteError, fmt::format("{} {} in or before {}{}", describe(peer), end, during, more)};
}

Status Watch::left(uint32_t peer, const std::string& during, const Status& cause) const {
  if (!cause.ok()) return cause;
  return {trRemoteError, fmt::format("{} destroyed its communicator in or before {}", describe(peer), during)};
}

// Whether a status that cannot be read means that the peer is gone; over a network it means that no answer is here yet.
bool Watch::knows_by_reading(uint32_t peer) const { return job_ == nullptr || statuses_->reads_status(peer); }

bool Watch::find_dead(uint32_t* peer) const {
  {  // also where its pid says nothing
    std::lock_guard lock(lost_mutex_);
    for (const auto& [rank, loss] : lost_)
      if (!loss.left && same_host(rank)) {
        *peer = rank;
        return true;
      }
  }
  for (*peer = 0; *peer < context_->ranks; ++*peer) {
    if (!is_dead(*peer)) continue;
    // It has ended: what memory says of it stays. Where that went with it, the job tells which ended out of order.
    RankStatusSnapshot snapshot;
    if (knows_by_reading(*peer) && read(*peer, &snapshot)) {
      if (!snapshot.left) return true;
    } else if (job_ == nullptr) {
      return true;
    } else {
      std::lock_guard lock(lost_mutex_);
      if (const auto found = lost_.find(*peer); found != lost_.end() && !found->second.left) return true;
    }
  }
  return false;
}

bool Watch::has_left(uint32_t peer) const {
  RankStatusSnapshot snapshot;
  if (read(peer, &snapshot) && snapshot.left) return true;
  std::lock_guard lock(lost_mutex_);
  const auto found = lost_.find(peer);
  return found != lost_.end() && found->second.left;
}

bool Watch::has_left_in_order(uint32_t peer) const {
  RankStatusSnapshot snapshot;
  if (read(peer, &snapshot) && snapshot.left) return !snapshot.failed;
  std::lock_guard lock(lost_mutex_);
  const auto found = lost_.find(peer);
  return found != lost_.end() && found->second.left && found->second.cause.ok();
}

bool Watch::is_awaited_by_gpus() const {
  const uint64_t own = context_->status->device_collectives.load(std::memory_order_relaxed);
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    RankStatusSnapshot snapshot;
    if (!knows_by_reading(peer) || !read(peer, &snapshot)) return true;
    if (!snapshot.left && snapshot.device_collectives > own) return true;
  }
  return false;
}

Status Watch::check_peer(uint32_t peer, const char* during) {
  // The cause alone would be taken for what this call found.
  const auto has_left_since = [&](const Status& cause) -> Status {
    return {cause.code(),
            fmt::format("{}. {} has left since, and takes no part in {}", cause.message(), describe(peer), during)};
  };
  RankStatusSnapshot snapshot;
  const bool readable = read(peer, &snapshot);
  {
    std::lock_guard lock(lost_mutex_);
    const auto found = lost_.find(peer);
    if (found != lost_.end() && found->second.left && !found->second.cause.ok())
      return has_left_since(found->second.cause);
  }
  if (Status lost = find_lost(peer, during); !lost.ok()) return lost;
  if (readable && snapshot.left) {
    const Status cause = snapshot.failed ? failure_of(snapshot) : agreement_.known();
    return cause.ok() ? left(peer, during, {}) : has_left_since(cause);
  }
  if (peer != context_->rank && ((!readable && knows_by_reading(peer)) || is_dead(peer)))
    return end_of(peer, during, "");
  return {};
}

Status Watch::check_death(uint32_t peer, const char* during) {
  if (peer == context_->rank) return {};
  {
    std::lock_guard lock(lost_mutex_);
    if (const auto found = lost_.find(peer); found != lost_.end() && found->second.left) return {};
  }
  if (Status lost = find_lost(peer, during); !lost.ok()) return lost;
  if (!knows_by_reading(peer) || !is_dead(peer)) return {};
  RankStatusSnapshot last;
  if (read(peer, &last) && last.left) return {};
  const Status end = end_of(peer, during, "");
  return has_left(peer) ? Status() : end;  // news of that may have come meanwhile
}

bool Watch::has_lost_any(const std::vector<uint32_t>& peers) const {
  std::lock_guard lock(lost_mutex_);
  return std::any_of(lost_.begin(), lost_.end(), [&](const auto& entry) {
    return !entry.second.left && std::find(peers.begin(), peers.end(), entry.first) != peers.end();
  });
}

Status Watch::check_deaths(const std::vector<uint32_t>& peers, const char* during) {
  std::string texts;
  trResult_t code = trSuccess;
  int told = 0;
  for (const uint32_t peer : peers) {
    const Status death = check_death(peer, during);
    if (death.ok() || told == kToldDeaths) continue;
    texts += (told++ == 0 ? "" : "; ") + death.message();
    code = death.code();
  }
  return {code, texts};
}

bool Watch::is_dead(uint32_t peer) const {
  const PeerIdentity& who = identity(peer);
  if (!same_host(peer)) return false;
  if (who.pid_namespace != identity(context_->rank).pid_namespace) return false;  // its pid means nothing here
  if (who.pid == static_cast<uint32_t>(getpid())) return false;
  return process_has_ended(static_cast<pid_t>(who.pid));
}

}  // namespace treering
