// SPDX-License-Identifier: Apache-2.0
// Watch's verdicts in words: who is at fault, where, and what it did.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>

#include "algorithms/collective.h"
#include "core/types.h"
#include "failure/absent.h"
#include "failure/watch.h"

namespace treering {
namespace {

constexpr Clock::duration kSilenceTimeout = std::chrono::milliseconds(700);  // with ranks that are asked
constexpr auto kAnswerTimeout = std::chrono::seconds(1);
constexpr size_t kMaxAbsent = 8;   // ranks that a text names
constexpr double kSignOfLife = 1;  // seconds: a rank that waits shows one each millisecond, its answers take longer

// "stopped" and the like, from /proc; empty when nothing is remarkable.
std::string process_state(uint32_t pid) {
  char text[256] = {}, state = '?';
  FILE* file = std::fopen(fmt::format("/proc/{}/stat", pid).c_str(), "re");
  if (file == nullptr) return {};
  if (std::fgets(text, sizeof text, file) != nullptr)
    if (std::string line = text; line.rfind(')') != std::string::npos && line.rfind(')') + 2 < line.size())
      state = line[line.rfind(')') + 2];
  (void)std::fclose(file);
  if (state == 'T' || state == 't') return ", stopped by a signal or a debugger";
  if (state == 'D') return ", in an uninterruptible wait of the kernel";
  return {};
}

// "allreduce of 1024 x float, sum", "alltoallv of float".
std::string call_text(const CallCopy& call) {
  if (call.collective >= kCollectiveCount) return "?";
  const CollectiveInfo& info = info_of(static_cast<Collective>(call.collective));
  if (!info.has_data) return info.name;
  const DataTypeInfo* type_row = find_type(static_cast<trDataType_t>(call.type));
  const OpInfo* op_row = find_op(static_cast<trRedOp_t>(call.op));
  const char* type = type_row != nullptr ? type_row->name : "?";
  std::string text = call.purpose == Purpose::kVariable ? fmt::format("{}v of {}", info.name, type)
                                                        : fmt::format("{} of {} x {}", info.name, call.count, type);
  if (info.reduces) text += fmt::format(", {}", op_row ? op_row->name : "an operation of the user");
  if (info.rooted) text += fmt::format(", root {}", call.root);
  return text;
}

std::string text_of(const CallCopy& call) {
  switch (call.purpose) {
    case Purpose::kSplit:
      return "trCommSplit or trCommDup";
    case Purpose::kGrow:
      return "trCommGrow";
    case Purpose::kBoxes:
      return "trExchangeStart";
    case Purpose::kBoxPlan:
      return "trExchangeCreate";
    case Purpose::kSparse:
      return "trSparseAllReduce";
    case Purpose::kGpus:
      return "an exchange of the library about GPUs";
    case Purpose::kItself:
    case Purpose::kVariable:
      break;
  }
  std::string text = call_text(call);
  if (call.fused != 0) text += fmt::format(" (the sum of {} calls of a group, which are fused)", call.fused);
  return text;
}

// Whether a rank that waits does so in a send or receive: outside of operations it waits nowhere else.
bool in_transfer(const RankStatusSnapshot& shown) { return shown.operation == shown.completed; }

std::string place_of(const RankStatusSnapshot& shown) {
  if (in_transfer(shown)) return "a send or receive";
  return fmt::format("operation {} ({})", shown.operation, text_of(shown.call(shown.operation)));
}

}  // namespace

Clock::duration Watch::time_for_answers(Clock::duration deadline) { return std::min(kSilenceTimeout, deadline / 4); }

Status Watch::no_progress(uint32_t peer, const std::vector<uint32_t>& ranks, const Serve& serve) {
  const auto asked = Clock::now();
  std::vector<uint32_t> unresponsive = ranks;
  std::erase(unresponsive, context_->rank);
  constexpr auto pause = std::chrono::milliseconds(1);
  for (auto next = asked; !unresponsive.empty() && next < asked + kSilenceTimeout && silence().empty();) {
    std::this_thread::sleep_until(next);
    lateness_ = std::max(lateness_, Clock::now() - next);
    next = Clock::now() + pause;
    if (Status known = agreement_.decided(); !known.ok()) return known;
    serve();
    std::erase_if(unresponsive, [&](uint32_t rank) {
      std::string bytes;
      Clock::time_point when;
      job_->request_status(rank);
      return job_->latest_status(rank, &bytes, &when) && when > asked;
    });
  }
  std::string who = silence();
  for (uint32_t rank : who.empty() ? unresponsive : std::vector<uint32_t>())
    who += fmt::format("{}{} does not answer", who.empty() ? "" : "; ", describe(rank));
  if (who.empty()) who = chain_of_waits(peer, true);
  (void)fail({trTimeout, fmt::format("no progress within {} ms in {}: {}. {}", timeout_.count(), operation_text(), who,
                                     who_waited_for(peer, who))});
  return await_failure(serve);
}

// By its number alone where `who` describes it already.
std::string Watch::who_waited_for(uint32_t peer, const std::string& who) const {
  const std::string described = describe(peer);
  return fmt::format("Rank {} waited for {}", context_->rank,
                     who.find(described) == std::string::npos ? described : fmt::format("rank {}", peer));
}

// A size that is told is of a transfer of the same call: nothing else differs.
Status Watch::transfers_differ(uint32_t peer, const TransferSizes& sizes) {
  const std::string own = describe(context_->rank), other = describe(peer);
  if (counted_)
    return fail(
        {trInvalidUsage, fmt::format("the ranks' calls differ in {}: {} receives from rank {} {} bytes, but {} sends "
                                     "it {} bytes. Their counts for one another must be equal",
                                     operation_text(), own, peer, *sizes.expected, other, *sizes.sent)});
  if (sizes.sent)
    return fail({trInvalidUsage, fmt::format("{} receives from rank {} {} bytes, but {} sends it {} bytes: the k-th "
                                             "receive must have as many bytes as the k-th send",
                                             own, peer, *sizes.expected, other, *sizes.sent)});
  return fail({trInvalidUsage,
               fmt::format("{} receives from rank {} {} bytes that {} does not send: the k-th receive must have as "
                           "many bytes as the k-th send, and collectives must stand between the same ones",
                           own, peer, *sizes.expected, other)});
}

void Watch::suspect_calls(uint32_t peer, const std::optional<TransferSizes>& sizes) {
  if (in_doubt()) return;
  if (sizes && !sizes->expected) return (void)meets_send(peer, *sizes->sent);
  if (sizes && (sizes->sent || !counted_)) return (void)transfers_differ(peer, *sizes);
  suspicion_ = {Suspicion::Kind::kCalls, peer, {}, Clock::now() + kAnswerTimeout};
  judge_calls(Clock::now());
}

// The message of a send, which is in no collective.
Status Watch::meets_send(uint32_t peer, uint64_t bytes) {
  return fail(
      {trInvalidUsage,
       fmt::format(
           "the ranks' calls differ at operation {}: {} called {}; {} sends it {} bytes, which it has not received "
           "before. Collectives must stand between the same sends and receives on all ranks",
           call_->operation, describe(context_->rank), own_call(), describe(peer), bytes)});
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
  const bool readable = read(peer, &last);
  Status news = find_lost(peer, operation_text());
  if (news.ok() && readable && last.left) news = left(peer, operation_text(), failure_of(last));
  if (news.ok() && is_dead(peer)) {
    news = end_of(peer, operation_text(), ": " + status.message());
    if (news.ok()) return;
  }
  if (!news.ok()) {
    // A call that failed in this process need not come of a peer that left in order.
    if (status.code() == trSystemError && has_left_in_order(peer))
      news = {news.code(), fmt::format("{}. The connection of {} to it failed: {}", news.message(),
                                       describe(context_->rank), status.message())};
    return (void)fail(news);
  }
  // The memory of a process that lives has gone: it leaves, and the job tells so.
  const bool has_gone = job_ != nullptr && knows_by_reading(peer) && !readable;
  if (now >= suspicion_.until + (has_gone ? time_for_end() : Clock::duration()))
    (void)fail({status.code(), fmt::format("the connection of {} to {} failed in {}: {}", describe(context_->rank),
                                           describe(peer), operation_text(), status.message())});
}

// What the peer called, from its memory at once, else from its answer.
void Watch::judge_calls(Clock::time_point now) {
  const uint32_t peer = suspicion_.peer;
  std::string bytes;
  Clock::time_point when;
  const bool answered =
      !knows_by_reading(peer) && job_->latest_status(peer, &bytes, &when) && when > suspicion_.until - kAnswerTimeout;
  RankStatusSnapshot other;
  const bool readable = read(peer, &other);
  // What it answered before may be of an earlier operation.
  if (readable &&
      (knows_by_reading(peer) || other.operation >= call_->operation || first_difference(other).has_value()))
    return (void)calls_differ(peer, other);
  if (knows_by_reading(peer))
    return (void)fail({trRemoteError, fmt::format("{} is gone in or before {}", describe(peer), operation_text())});
  if (now < suspicion_.until) return;
  const char* const at = other.operation > other.completed ? "in" : "no further than";
  const std::string where =
      answered && readable && other.operation > 0
          ? fmt::format("is {} operation {} ({})", at, other.operation, text_of(other.call(other.operation)))
          : std::string("does not answer any more");
  (void)fail({trInvalidUsage,
              fmt::format("the ranks' calls differ at operation {}: {} called {}; {}, which called something else, {}. "
                          "All ranks must make the same calls in the same order",
                          call_->operation, describe(context_->rank), own_call(), describe(peer), where)});
}

Status Watch::calls_differ(uint32_t peer, const RankStatusSnapshot& other) {
  const RankStatusSnapshot own = snapshot_of(*context_->status);
  // Calls that both keep show where they began to differ. Else the messages met out of step.
  const std::optional<uint64_t> found = first_difference(other);
  const uint64_t ours = found.value_or(call_->operation), theirs = found.value_or(other.operation);
  const CallCopy &own_call = own.call(ours), &other_call = other.call(theirs);
  if (ours == theirs && text_of(other_call) == text_of(own_call))
    return fail(
        {trInvalidUsage,
         fmt::format("the ranks' calls differ at or before operation {}: {} and {} both called {}, but with other "
                     "counts of {} or another compression, or an earlier call of theirs differed, as in its root. All "
                     "ranks must make the same calls in the same order",
                     ours, describe(context_->rank), describe(peer), text_of(own_call),
                     own_call.fused != 0 ? "the single calls" : "the ranks")});
  return fail({trInvalidUsage,
               fmt::format("the ranks' calls differ at operation {}: {} called {}; {} called {}{}. All ranks must make "
                           "the same calls in the same order",
                           ours, describe(context_->rank), text_of(own_call), describe(peer), text_of(other_call),
                           ours == theirs ? "" : fmt::format(" as its operation {}", theirs))});
}

// What the rank is in.
std::string Watch::operation_text() const {
  if (call_ == nullptr) return "the creation of the communicator";
  if (!counted_) return "a send or receive";
  return fmt::format("operation {} ({})", call_->operation, own_call());
}

std::string Watch::own_call() const { return text_of(context_->status->calls[call_->operation % kCallsKept].load()); }

// Who does not answer, in words; empty when all do.
std::string Watch::silence(const std::vector<uint32_t>* among) const {
  std::string text;
  if (job_ == nullptr) return text;
  for (const SilentRanks& silent : job_->silent()) {
    const auto is_among = [&](uint32_t rank) {
      return among == nullptr || std::find(among->begin(), among->end(), rank) != among->end();
    };
    if (std::any_of(silent.ranks.begin(), silent.ranks.end(), is_among))
      text += (text.empty() ? "" : "; ") + silent.text();
  }
  return text;
}

bool Watch::is_silent(uint32_t peer) const {
  const std::vector<uint32_t> one{peer};
  return !silence(&one).empty();
}

Status Watch::late(const char* function, const std::vector<uint32_t>& members,
                   const std::function<std::string()>& otherwise) const {
  const std::string silent = silence(&members);
  return {trTimeout, fmt::format("{}: {}", function, silent.empty() ? otherwise() : "the deadline passed: " + silent)};
}

std::string Watch::describe(uint32_t peer) const {
  const PeerIdentity& who = identity(peer);
  const std::string host = job_ != nullptr && !who.host_name.empty() ? " on " + who.host_name : "";
  return fmt::format("rank {} (pid {}{}{})", peer, who.pid, host, state_of(peer));
}

std::vector<uint32_t> Watch::lost_ranks() const {
  std::set<uint32_t> lost;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer)
    if (peer != context_->rank && (has_left(peer) || is_dead(peer) || is_stopped(peer))) lost.insert(peer);
  {
    std::lock_guard lock(lost_mutex_);
    for (const auto& [peer, loss] : lost_) lost.insert(peer);
  }
  if (job_ != nullptr)
    for (const SilentRanks& silent : job_->silent()) lost.insert(silent.ranks.begin(), silent.ranks.end());
  lost.erase(context_->rank);
  return {lost.begin(), lost.end()};
}

// Where its pid means something here. This rank runs: it speaks.
std::string Watch::state_of(uint32_t peer) const {
  if (peer == context_->rank) return {};
  const PeerIdentity& who = identity(peer);
  const bool near = same_host(peer) && who.pid_namespace == identity(context_->rank).pid_namespace;
  return near ? process_state(who.pid) : std::string();
}

// The ranks that do not answer, or have not made the call yet, in words; empty when there are none.
std::string Watch::absent(uint32_t waiting_for) const {
  if (std::string silent = silence(); !silent.empty()) return silent;
  std::vector<RankProgress> others;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    RankStatusSnapshot shown;
    if (peer == context_->rank || (!counted_ && peer != waiting_for) || !read(peer, &shown)) continue;
    others.push_back({peer, shown.operation, shown.completed, {}, is_stopped(peer)});
    // One that shows no sign of life has ended its wait, or does not run.
    if (shown.waiting_for != 0 && shows_life(peer)) others.back().waiting_for = shown.waiting_for - 1;
  }
  std::string text;
  const std::vector<uint32_t> absent = absent_ranks(others, call_->operation);
  for (const uint32_t peer : absent) {
    if (&peer == absent.data() + kMaxAbsent) {
      text += fmt::format("; and {} more", absent.size() - kMaxAbsent);
      break;
    }
    const auto shown =
        std::find_if(others.begin(), others.end(), [peer](const auto& each) { return each.rank == peer; });
    // Outside of operations, ranks wait in sends and receives alone.
    const bool waits = shown->waiting_for.has_value() && shown->operation == shown->completed;
    text += fmt::format("{}{} has not entered it (its last is operation {}{})", text.empty() ? "" : "; ",
                        describe(peer), shown->operation,
                        waits ? fmt::format("; it waits in a send or receive for rank {}", *shown->waiting_for) : "");
  }
  // They may be in a creation that waits for ranks of which nothing is heard here.
  const bool by_answers = job_ != nullptr && !knows_by_reading(waiting_for);
  const auto relay = by_answers && !text.empty() ? job_->silent_relay() : std::nullopt;
  return relay ? fmt::format("{}. Answers of others come through {}", text, relay->text()) : text;
}

std::string Watch::late_gpus(uint64_t collective) const {
  std::string text;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    RankStatusSnapshot shown;
    if (peer == context_->rank || !read(peer, &shown) || shown.left || shown.device_collectives >= collective) continue;
    text += fmt::format("{}{} has not given its GPU collective {} (it is at {})", text.empty() ? "" : "; ",
                        describe(peer), collective, shown.device_collectives);
  }
  return text.empty() ? silence() : text;
}

// Seconds.
double Watch::silence_of(uint32_t peer) const {
  return std::chrono::duration<double>(Clock::now() - seen_[peer].changed).count();
}

bool Watch::shows_life(uint32_t peer) const { return seen_[peer].moved && silence_of(peer) < kSignOfLife; }

// Two ranks that wait for each other, as each showed it, `one` first. They did so at one time if `one` shows the same
// again. One may be in a collective, the other in a send or receive.
std::string Watch::wait_of_two(const Shown& one, const Shown& other) const {
  const RankStatusSnapshot &first = one.status, &second = other.status;
  RankStatusSnapshot again;
  if (!read(one.rank, &again) || again.waiting_for != first.waiting_for || again.operation != first.operation ||
      again.completed != first.completed)
    return fmt::format("{} is alive, waiting for rank {}, which has gone on or left meanwhile", describe(other.rank),
                       one.rank);
  const bool both_transfer = call_ != nullptr && in_transfer(first) && in_transfer(second);
  if (both_transfer || in_transfer(first) != in_transfer(second))
    return fmt::format(
        "{} waits for rank {} in {}, which waits for it in {}: their calls do not match, or what they sent has not "
        "arrived",
        describe(one.rank), other.rank, place_of(first), place_of(second));
  return fmt::format("{} and {} are alive and wait for each other: what they sent has not arrived", describe(one.rank),
                     describe(other.rank));
}

// A rank of this machine that is in this operation and shows no sign of life, in words; empty when there is none. A rank
// shows one of those that it waits for, so that a rank which holds up two others may be missing from what they show.
std::string Watch::lifeless_rank() const {
  for (uint32_t peer = 0; counted_ && peer < context_->ranks; ++peer) {
    RankStatusSnapshot shown;
    if (peer == context_->rank || !knows_by_reading(peer) || shows_life(peer) || !read(peer, &shown)) continue;
    if (shown.completed < call_->operation)
      return fmt::format("{} has shown no sign of life for {:.1f} s", describe(peer), silence_of(peer));
  }
  return {};
}

// Whether `peer`, which shows no sign of life now, showed its last one clearly later than the rank that it waits for. Then
// its answers are late, as on a busy machine, and the other one is to be named, unless that has done its part. Where
// there are many ranks, each is asked seldom, so that the age of an answer says nothing.
bool Watch::follows_silence(uint32_t peer, uint32_t waited_for) const {
  if (waited_for == context_->rank || !seen_[peer].moved || !state_of(peer).empty()) return false;
  if (crowd_ > 1 || silence_of(waited_for) <= silence_of(peer) + kSignOfLife) return false;
  RankStatusSnapshot shown;
  return !counted_ || !read(waited_for, &shown) || shown.completed < call_->operation;
}

// Follows the waits from rank to rank, to one that shows no sign of life or waits for no other. Where all are alive and
// wait for one another, no rank is at fault: what they sent has not arrived.
std::string Watch::chain_of_waits(uint32_t waiting_for, bool all_answer) const {
  std::vector<uint32_t> seen;
  Shown before{context_->rank, snapshot_of(*context_->status)};
  for (uint32_t peer = waiting_for;;) {
    RankStatusSnapshot snapshot;
    const bool waits = read(peer, &snapshot) && snapshot.waiting_for != 0 && snapshot.waiting_for <= context_->ranks;
    const uint32_t next = waits ? snapshot.waiting_for - 1 : peer;
    const double silent = silence_of(peer);
    if (!all_answer && !shows_life(peer) && !(waits && follows_silence(peer, next))) {
      const auto relay = job_ != nullptr ? job_->silent_relay() : std::nullopt;
      if (relay && !knows_by_reading(peer))
        return fmt::format("no answer of {} has come for {:.1f} s. Answers come through {}", describe(peer), silent,
                           relay->text());
      return fmt::format("{} has shown no sign of life for {:.1f} s{}", describe(peer), silent,
                         waits ? fmt::format(", waiting for rank {}", next) : "");
    }
    if (!waits) return fmt::format("{} is alive, and waits for no rank", describe(peer));
    seen.push_back(before.rank);
    const bool is_loop = std::find(seen.begin(), seen.end(), next) != seen.end();
    if (std::string lifeless = is_loop && !all_answer ? lifeless_rank() : ""; !lifeless.empty()) return lifeless;
    if (next == before.rank) return wait_of_two(before, {peer, snapshot});
    if (is_loop)
      return fmt::format(
          "{} is alive, waiting for rank {}: the ranks wait for one another, and what they sent has not arrived",
          describe(peer), next);
    before = {peer, snapshot};
    peer = next;
  }
}

std::string Watch::who_holds_up(uint32_t waiting_for, trResult_t* code) {
  *code = trTimeout;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) note_progress(peer);
  const std::string lacking = without_descriptors();
  // That a process is stopped says more than that it does not answer.
  const std::string who = state_of(waiting_for).empty() ? absent(waiting_for) : std::string();
  if (!who.empty()) return who;
  if (lacking.empty()) return chain_of_waits(waiting_for);
  *code = trSystemError;
  return lacking;
}

// Ranks to which others may have to connect first, and cannot; empty when there are none.
std::string Watch::without_descriptors() const {
  std::string text;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    RankStatusSnapshot shown;
    if (!read(peer, &shown) || !shown.takes_no_connection) continue;
    text += fmt::format(
        "{}{}: connections to its process wait, because no file descriptor is left for them (see ulimit -n)",
        text.empty() ? "" : "; ", describe(peer));
  }
  return text;
}

Status Watch::deadline_verdict(uint32_t waiting_for) {
  trResult_t code = trTimeout;
  const std::string who = who_holds_up(waiting_for, &code);
  const std::string what = is_cut_off_ ? fmt::format("no connection to {}", describe(waiting_for)) : "no progress";
  return {code, fmt::format("{} within {} ms in {}: {}. {}", what, timeout_.count(), operation_text(), who,
                            who_waited_for(waiting_for, who))};
}

}  // namespace treering
