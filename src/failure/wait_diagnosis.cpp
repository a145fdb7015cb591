// SPDX-License-Identifier: Apache-2.0
#include "failure/wait_diagnosis.h"

#include <fmt/format.h>

#include <algorithm>

#include "failure/absent.h"

namespace treering {
namespace {

constexpr size_t kMaxAbsent = 8;   // ranks that a text names
constexpr double kSignOfLife = 1;  // seconds: a rank that waits shows one each millisecond, its answers take longer
constexpr uint32_t kSpeakersOfAll = 4;  // ranks at which those of other hosts look, to leave a warning to them
constexpr size_t kMaxNamed = 8;

}  // namespace

void WaitDiagnosis::begin(Clock::time_point now) {
  for (Seen& seen : seen_) seen = {.changed = now};
}

void WaitDiagnosis::look(uint32_t peer) {
  RankStatusSnapshot snapshot;
  if (!peers_->read(peer, &snapshot)) return;
  Seen& seen = seen_[peer];
  const bool changes = snapshot.heartbeat != seen.heartbeat || snapshot.operation != seen.operation;
  if (seen.known && changes) seen = {snapshot.heartbeat, snapshot.operation, Clock::now(), true, true, seen.gone};
  if (!seen.known) seen = {snapshot.heartbeat, snapshot.operation, seen.changed, true, false, seen.gone};
}

// Seconds.
double WaitDiagnosis::silence_of(uint32_t peer) const {
  return std::chrono::duration<double>(Clock::now() - seen_[peer].changed).count();
}

bool WaitDiagnosis::shows_life(uint32_t peer) const { return seen_[peer].moved && silence_of(peer) < kSignOfLife; }

std::string WaitDiagnosis::who_holds_up(uint32_t waiting_for, trResult_t* code) {
  *code = trTimeout;
  for (uint32_t peer = 0; peer < peers_->ranks(); ++peer) look(peer);
  const std::string lacking = without_descriptors();
  // That a process is stopped says more than that it does not answer.
  const std::string who = peers_->state_of(waiting_for).empty() ? absent(waiting_for) : std::string();
  if (!who.empty()) return who;
  if (lacking.empty()) return chain_of_waits(waiting_for);
  *code = trSystemError;
  return lacking;
}

// Ranks to which others may have to connect first, and cannot; empty when there are none.
std::string WaitDiagnosis::without_descriptors() const {
  std::string text;
  for (uint32_t peer = 0; peer < peers_->ranks(); ++peer) {
    RankStatusSnapshot shown;
    if (!peers_->read(peer, &shown) || !shown.takes_no_connection) continue;
    text += fmt::format(
        "{}{}: connections to its process wait, because no file descriptor is left for them (see ulimit -n)",
        text.empty() ? "" : "; ", peers_->describe(peer));
  }
  return text;
}

// The ranks that do not answer, or have not made the call yet, in words; empty when there are none.
std::string WaitDiagnosis::absent(uint32_t waiting_for) const {
  if (std::string silent = peers_->silence(); !silent.empty()) return silent;
  std::vector<RankProgress> others;
  for (uint32_t peer = 0; peer < peers_->ranks(); ++peer) {
    RankStatusSnapshot shown;
    if (peer == peers_->own_rank() || (!call_->is_counted() && peer != waiting_for) || !peers_->read(peer, &shown))
      continue;
    others.push_back({peer, shown.operation, shown.completed, {}, peers_->is_stopped(peer)});
    // One that shows no sign of life has ended its wait, or does not run.
    if (shown.waiting_for != 0 && shows_life(peer)) others.back().waiting_for = shown.waiting_for - 1;
  }
  std::string text;
  const std::vector<uint32_t> absent = absent_ranks(others, call_->number());
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
                        peers_->describe(peer), shown->operation,
                        waits ? fmt::format("; it waits in a send or receive for rank {}", *shown->waiting_for) : "");
  }
  // They may be in a creation that waits for ranks of which nothing is heard here.
  const bool by_answers = peers_->asks() && !peers_->knows_by_reading(waiting_for);
  const auto relay = by_answers && !text.empty() ? peers_->silent_relay() : std::nullopt;
  return relay ? fmt::format("{}. Answers of others come through {}", text, relay->text()) : text;
}

// Follows the waits from rank to rank, to one that shows no sign of life or waits for no other. Where all are alive and
// wait for one another, no rank is at fault: what they sent has not arrived.
std::string WaitDiagnosis::chain_of_waits(uint32_t waiting_for, bool all_answer) const {
  std::vector<uint32_t> seen;
  Shown before{peers_->own_rank(), snapshot_of(*status_)};
  for (uint32_t peer = waiting_for;;) {
    RankStatusSnapshot snapshot;
    const bool waits =
        peers_->read(peer, &snapshot) && snapshot.waiting_for != 0 && snapshot.waiting_for <= peers_->ranks();
    const uint32_t next = waits ? snapshot.waiting_for - 1 : peer;
    const double silent = silence_of(peer);
    if (!all_answer && !shows_life(peer) && !(waits && follows_silence(peer, next))) {
      const auto relay = peers_->silent_relay();
      if (relay && !peers_->knows_by_reading(peer))
        return fmt::format("no answer of {} has come for {:.1f} s. Answers come through {}", peers_->describe(peer),
                           silent, relay->text());
      return fmt::format("{} has shown no sign of life for {:.1f} s{}", peers_->describe(peer), silent,
                         waits ? fmt::format(", waiting for rank {}", next) : "");
    }
    if (!waits) return fmt::format("{} is alive, and waits for no rank", peers_->describe(peer));
    seen.push_back(before.rank);
    const bool is_loop = std::find(seen.begin(), seen.end(), next) != seen.end();
    if (std::string lifeless = is_loop && !all_answer ? lifeless_rank() : ""; !lifeless.empty()) return lifeless;
    if (next == before.rank) return wait_of_two(before, {peer, snapshot});
    if (is_loop)
      return fmt::format(
          "{} is alive, waiting for rank {}: the ranks wait for one another, and what they sent has not arrived",
          peers_->describe(peer), next);
    before = {peer, snapshot};
    peer = next;
  }
}

// Whether `peer`, which shows no sign of life now, showed its last one clearly later than the rank that it waits for. Then
// its answers are late, as on a busy machine, and the other one is to be named, unless that has done its part. Where
// there are many ranks, each is asked seldom, so that the age of an answer says nothing.
bool WaitDiagnosis::follows_silence(uint32_t peer, uint32_t waited_for) const {
  if (waited_for == peers_->own_rank() || !seen_[peer].moved || !peers_->state_of(peer).empty()) return false;
  if (!all_at_once_ || silence_of(waited_for) <= silence_of(peer) + kSignOfLife) return false;
  RankStatusSnapshot shown;
  return !call_->is_counted() || !peers_->read(waited_for, &shown) || shown.completed < call_->number();
}

// A rank of this machine that is in this operation and shows no sign of life, in words; empty when there is none. A rank
// shows one of those that it waits for, so that a rank which holds up two others may be missing from what they show.
std::string WaitDiagnosis::lifeless_rank() const {
  for (uint32_t peer = 0; call_->is_counted() && peer < peers_->ranks(); ++peer) {
    RankStatusSnapshot shown;
    if (peer == peers_->own_rank() || !peers_->knows_by_reading(peer) || shows_life(peer) ||
        !peers_->read(peer, &shown))
      continue;
    if (shown.completed < call_->number())
      return fmt::format("{} has shown no sign of life for {:.1f} s", peers_->describe(peer), silence_of(peer));
  }
  return {};
}

// Two ranks that wait for each other, as each showed it, `one` first. They did so at one time if `one` shows the same
// again. One may be in a collective, the other in a send or receive.
std::string WaitDiagnosis::wait_of_two(const Shown& one, const Shown& other) const {
  const RankStatusSnapshot &first = one.status, &second = other.status;
  RankStatusSnapshot again;
  if (!peers_->read(one.rank, &again) || again.waiting_for != first.waiting_for || again.operation != first.operation ||
      again.completed != first.completed)
    return fmt::format("{} is alive, waiting for rank {}, which has gone on or left meanwhile",
                       peers_->describe(other.rank), one.rank);
  const bool both_transfer = !call_->is_creation() && in_transfer(first) && in_transfer(second);
  if (both_transfer || in_transfer(first) != in_transfer(second))
    return fmt::format(
        "{} waits for rank {} in {}, which waits for it in {}: their calls do not match, or what they sent has not "
        "arrived",
        peers_->describe(one.rank), other.rank, place_of(first), place_of(second));
  return fmt::format("{} and {} are alive and wait for each other: what they sent has not arrived",
                     peers_->describe(one.rank), peers_->describe(other.rank));
}

// By its number alone where `who` describes it already.
std::string WaitDiagnosis::who_waited_for(uint32_t peer, const std::string& who) const {
  const std::string described = peers_->describe(peer);
  return fmt::format("Rank {} waited for {}", peers_->own_rank(),
                     who.find(described) == std::string::npos ? described : fmt::format("rank {}", peer));
}

// Whether no lower rank waits in this operation and runs, as far as is known. A rank looks at all of its host and at few
// others.
bool WaitDiagnosis::speaks_for_others() {
  for (uint32_t peer = 0; peer < peers_->own_rank(); ++peer) {
    if (peer >= kSpeakersOfAll && !peers_->knows_by_reading(peer)) continue;
    look(peer);
    RankStatusSnapshot shown;
    if (!shows_life(peer) || !peers_->read(peer, &shown)) continue;
    if (shown.waiting_for != 0 && shown.operation == call_->number() && shown.completed < shown.operation) return false;
  }
  return true;
}

// A rank that was asked a moment ago is not asked at once again: it is to be called again and again.
void WaitDiagnosis::ask_others(Clock::time_point since) const {
  for (uint32_t peer = 0; peer < peers_->ranks(); ++peer)
    if (!peers_->has_answered(peer, since)) peers_->ask(peer);
}

// The ranks that have not answered since they were asked, in words. What they showed before may have changed.
std::string WaitDiagnosis::unanswered(Clock::time_point asked) const {
  std::string text;
  size_t count = 0;
  for (uint32_t peer = 0; peer < peers_->ranks(); ++peer) {
    if (peers_->has_answered(peer, asked)) continue;
    if (count++ < kMaxNamed) text += (text.empty() ? "" : ", ") + peers_->describe(peer);
  }
  if (count > kMaxNamed) text += fmt::format(" and {} more", count - kMaxNamed);
  return text.empty() ? text : fmt::format("no answer has come of {}", text);
}

}  // namespace treering
