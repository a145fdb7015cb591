// SPDX-License-Identifier: Apache-2.0
#include "failure/peer_states.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "core/process.h"

namespace treering {
namespace {

// From the end of a process until the job tells how it ended.
constexpr Clock::duration kNewsOfEnd = std::chrono::seconds(1);
constexpr int kToldDeaths = 8;

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

}  // namespace

std::string PeerStates::describe(uint32_t peer) const {
  const PeerIdentity& who = identity(peer);
  const std::string host = job_ != nullptr && !who.host_name.empty() ? " on " + who.host_name : "";
  return fmt::format("rank {} (pid {}{}{})", peer, who.pid, host, state_of(peer));
}

// Where its pid means something here. This rank runs: it speaks.
std::string PeerStates::state_of(uint32_t peer) const {
  if (peer == context_->rank) return {};
  const PeerIdentity& who = identity(peer);
  const bool near = same_host(peer) && who.pid_namespace == identity(context_->rank).pid_namespace;
  return near ? process_state(who.pid) : std::string();
}

bool PeerStates::read(uint32_t peer, RankStatusSnapshot* snapshot) const {
  if (peer == context_->rank) {
    *snapshot = snapshot_of(*context_->status);
    return true;
  }
  return statuses_->read_status(peer, snapshot);
}

Status PeerStates::failure_of(const RankStatusSnapshot& shown) {
  return shown.failed ? Status(static_cast<trResult_t>(shown.failure_code), shown.failure_text) : Status();
}

std::optional<Clock::time_point> PeerStates::answered_at(uint32_t peer) const {
  std::string bytes;
  Clock::time_point when;
  return job_ != nullptr && job_->latest_status(peer, &bytes, &when) ? std::optional(when) : std::nullopt;
}

bool PeerStates::has_answered(uint32_t peer, Clock::time_point since) const {
  if (knows_by_reading(peer)) return true;
  const auto answered = answered_at(peer);
  return answered && *answered >= since;
}

// Whether a status that cannot be read means that the peer is gone; over a network it means that no answer is here yet.
bool PeerStates::knows_by_reading(uint32_t peer) const { return job_ == nullptr || statuses_->reads_status(peer); }

bool PeerStates::is_dead(uint32_t peer) const {
  const PeerIdentity& who = identity(peer);
  if (!same_host(peer)) return false;
  if (who.pid_namespace != identity(context_->rank).pid_namespace) return false;  // its pid means nothing here
  if (who.pid == static_cast<uint32_t>(getpid())) return false;
  return process_has_ended(static_cast<pid_t>(who.pid));
}

void PeerStates::note_lost(const std::vector<uint32_t>& ranks, const std::string& reason) {
  std::lock_guard lock(lost_mutex_);
  for (uint32_t rank : ranks) lost_.try_emplace(rank, Loss{reason, Clock::now()});
}

void PeerStates::note_left(uint32_t rank, const Status& cause) {
  std::lock_guard lock(lost_mutex_);
  lost_.try_emplace(rank, Loss{"", Clock::now(), true, cause});
}

std::map<uint32_t, PeerStates::Loss> PeerStates::losses() const {
  std::lock_guard lock(lost_mutex_);
  return lost_;
}

std::optional<PeerStates::Loss> PeerStates::loss_of(uint32_t peer) const {
  std::lock_guard lock(lost_mutex_);
  const auto found = lost_.find(peer);
  return found == lost_.end() ? std::nullopt : std::optional(found->second);
}

bool PeerStates::has_left(uint32_t peer) const {
  RankStatusSnapshot snapshot;
  if (read(peer, &snapshot) && snapshot.left) return true;
  const std::optional<Loss> loss = loss_of(peer);
  return loss && loss->left;
}

bool PeerStates::has_left_in_order(uint32_t peer) const {
  RankStatusSnapshot snapshot;
  if (read(peer, &snapshot) && snapshot.left) return !snapshot.failed;
  const std::optional<Loss> loss = loss_of(peer);
  return loss && loss->left && loss->cause.ok();
}

bool PeerStates::find_dead(uint32_t* peer) const {
  for (const auto& [rank, loss] : losses())  // also where its pid says nothing
    if (!loss.left && same_host(rank)) {
      *peer = rank;
      return true;
    }
  for (*peer = 0; *peer < context_->ranks; ++*peer) {
    if (!is_dead(*peer)) continue;
    // It has ended: what memory says of it stays. Where that went with it, the job tells which ended out of order.
    RankStatusSnapshot snapshot;
    if (knows_by_reading(*peer) && read(*peer, &snapshot)) {
      if (!snapshot.left) return true;
    } else if (job_ == nullptr) {
      return true;
    } else if (const std::optional<Loss> loss = loss_of(*peer); loss && !loss->left) {
      return true;
    }
  }
  return false;
}

Status PeerStates::find_lost(uint32_t peer, const std::string& during) const {
  const std::optional<Loss> loss = loss_of(peer);
  if (!loss) return {};
  if (loss->left) return left(peer, during, loss->cause);
  return {trRemoteError, fmt::format("{} was lost in or before {}: {}", describe(peer), during, loss->reason)};
}

Status PeerStates::left(uint32_t peer, const std::string& during, const Status& cause) const {
  if (!cause.ok()) return cause;
  return {trRemoteError, fmt::format("{} destroyed its communicator in or before {}", describe(peer), during)};
}

Clock::duration PeerStates::time_for_end() const {
  return timeout_.count() > 0 ? std::min<Clock::duration>(timeout_, kNewsOfEnd) : kNewsOfEnd;
}

// What to say of a peer whose process has ended: it left in order where its memory says so, or, where that went with
// it, the job, a moment later; Ok until then.
Status PeerStates::end_of(uint32_t peer, const std::string& during, const std::string& more) const {
  RankStatusSnapshot last;
  const bool readable = knows_by_reading(peer) && read(peer, &last);  // what was answered before its end is old
  if (readable && last.left) return left(peer, during, failure_of(last));
  if (!readable && job_ != nullptr) {
    const auto now = Clock::now();
    const auto seen = ended_.try_emplace(peer, now).first->second;
    const std::optional<Loss> loss = loss_of(peer);
    if (loss && loss->left) return left(peer, during, loss->cause);
    if (!loss && now < seen + time_for_end()) return {};
  }
  // Between namespaces of process ids nothing but its memory tells, and may be out of reach for another reason.
  const char* const end = readable || is_dead(peer) ? "has died" : "is gone (its memory cannot be read)";
  return {trRemoteError, fmt::format("{} {} in or before {}{}", describe(peer), end, during, more)};
}

Status PeerStates::check_death(uint32_t peer, const char* during) const {
  if (peer == context_->rank) return {};
  if (const std::optional<Loss> loss = loss_of(peer); loss && loss->left) return {};
  if (Status lost = find_lost(peer, during); !lost.ok()) return lost;
  if (!knows_by_reading(peer) || !is_dead(peer)) return {};
  RankStatusSnapshot last;
  if (read(peer, &last) && last.left) return {};
  const Status end = end_of(peer, during, "");
  return has_left(peer) ? Status() : end;  // news of that may have come meanwhile
}

bool PeerStates::has_lost_any(const std::vector<uint32_t>& peers) const {
  std::lock_guard lock(lost_mutex_);
  return std::any_of(lost_.begin(), lost_.end(), [&](const auto& entry) {
    return !entry.second.left && std::find(peers.begin(), peers.end(), entry.first) != peers.end();
  });
}

Status PeerStates::check_deaths(const std::vector<uint32_t>& peers, const char* during) const {
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

std::vector<uint32_t> PeerStates::lost_ranks() const {
  std::set<uint32_t> lost;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer)
    if (peer != context_->rank && (has_left(peer) || is_dead(peer) || is_stopped(peer))) lost.insert(peer);
  for (const auto& [peer, loss] : losses()) lost.insert(peer);
  if (job_ != nullptr)
    for (const SilentRanks& silent : job_->silent()) lost.insert(silent.ranks.begin(), silent.ranks.end());
  lost.erase(context_->rank);
  return {lost.begin(), lost.end()};
}

// Who does not answer, in words; empty when all do.
std::string PeerStates::silence(const std::vector<uint32_t>* among) const {
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

bool PeerStates::is_silent(uint32_t peer) const {
  const std::vector<uint32_t> one{peer};
  return !silence(&one).empty();
}

bool PeerStates::is_awaited_by_gpus() const {
  const uint64_t own = context_->status->device_collectives.load(std::memory_order_relaxed);
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    RankStatusSnapshot snapshot;
    if (!knows_by_reading(peer) || !read(peer, &snapshot)) return true;
    if (!snapshot.left && snapshot.device_collectives > own) return true;
  }
  return false;
}

std::string PeerStates::late_gpus(uint64_t collective) const {
  std::string text;
  for (uint32_t peer = 0; peer < context_->ranks; ++peer) {
    RankStatusSnapshot shown;
    if (peer == context_->rank || !read(peer, &shown) || shown.left || shown.device_collectives >= collective) continue;
    text += fmt::format("{}{} has not given its GPU collective {} (it is at {})", text.empty() ? "" : "; ",
                        describe(peer), collective, shown.device_collectives);
  }
  return text.empty() ? silence() : text;
}

}  // namespace treering
