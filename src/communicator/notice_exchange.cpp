// SPDX-License-Identifier: Apache-2.0
#include "communicator/notice_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "bootstrap/membership.h"
#include "executor/backoff.h"
#include "failure/absent.h"

namespace treering {
namespace {

// Between two looks at all ranks; each look is as long as there are ranks, and all ranks of a host look.
Clock::duration look_period(uint32_t ranks) {
  return std::chrono::milliseconds(20) + std::chrono::microseconds(ranks) * ranks;
}
// How long a rank without shared memory, which is not known to be dead, may take to answer.
constexpr auto kAnswerTimeout = std::chrono::milliseconds(100);
// The same for one that a shrink excludes, which may exclude this one; half of a short deadline.
constexpr Clock::duration kExcludedTimeout = std::chrono::seconds(8);
// How long a rank that refuses stays for those that have yet to see why: its next call overwrites it. Past the deadline:
constexpr Clock::duration kRefusalTimeout = std::chrono::seconds(2),
                          kLateRefusalTimeout = std::chrono::milliseconds(500);
constexpr size_t kMaxNamed = 8;

// "2, 3 and 9 more"
std::string list_of(const RankSet& set) {
  std::string text;
  size_t named = 0;
  for (size_t rank = 0; rank < set.size() && named < kMaxNamed; ++rank)
    if (set.test(rank)) text += fmt::format("{}{}", named++ == 0 ? "" : ", ", rank);
  return set.count() > named ? fmt::format("{} and {} more", text, set.count() - named) : text;
}

// What a excludes and b does not; empty: nothing.
std::string excluded_by_one(uint32_t a, const RankSet& of_a, uint32_t b, const RankSet& of_b) {
  const RankSet only = of_b & ~of_a;
  if (only.none()) return {};
  return fmt::format("rank {} excludes {}, rank {} does not", a, list_of(only), b);
}

Status sets_differ(const char* function, uint32_t own, const RankSet& of_own, uint32_t other, const RankSet& of_other) {
  if (of_own == of_other)  // a refusal may tell of this rank's set alone
    return {trInvalidUsage,
            fmt::format("{}: the ranks' sets differ: another rank gave another one than rank {}", function, own)};
  const std::string first = excluded_by_one(own, of_own, other, of_other);
  const std::string second = excluded_by_one(other, of_other, own, of_own);
  return {trInvalidUsage, fmt::format("{}: the ranks' sets differ: {}{}{}", function, first,
                                      first.empty() || second.empty() ? "" : "; ", second)};
}

}  // namespace

uint64_t NoticeExchange::show(const SplitInfo& info) {
  const uint64_t round = ++rounds_;
  Notice& notice = context_->status->notices[round % 2];
  uint64_t words[kNoticeWords];
  std::memcpy(words, &info, sizeof info);
  for (size_t i = 0; i < kNoticeWords; ++i) notice.words[i].store(words[i], std::memory_order_relaxed);
  // In one order with the looks at others' (snapshot_of): of two that exclude each other, one sees the other.
  (void)notice.round.exchange(round, std::memory_order_seq_cst);
  return round;
}

// *shown: the round of the peer's notice. The info is there when it is the one that was asked for.
bool NoticeExchange::find(uint32_t peer, uint64_t round, SplitInfo* info, uint64_t* shown) const {
  // Twice: a copy from another process may be half old, but not any more once the round was there before it was taken.
  for (int look = 0; look < 2; ++look) {
    RankStatusSnapshot snapshot;
    if (!watch_->peers().read(peer, &snapshot)) return false;
    const auto& notice = snapshot.notices[round % 2];
    *shown = notice.round;
    if (notice.round != round) return true;
    std::memcpy(static_cast<void*>(info), notice.words.data(), sizeof *info);
  }
  return true;
}

// Whether the peer has shown a notice of that round, or a later one.
bool NoticeExchange::has_shown(uint32_t peer, uint64_t round) const {
  RankStatusSnapshot snapshot;
  return watch_->peers().read(peer, &snapshot) &&
         std::max(snapshot.notices[0].round, snapshot.notices[1].round) >= round;
}

// *arrived: the peer's notice of that round is here.
Status NoticeExchange::read(uint32_t peer, uint64_t round, const char* function, SplitInfo* info, bool* arrived) const {
  uint64_t shown = 0;
  const bool readable = find(peer, round, info, &shown);
  *arrived = readable && shown == round;
  if (*arrived) return {};
  if (readable && shown > round)
    return {trInvalidUsage, fmt::format("{}: rank {} has ended this call, and made another one: the ranks' calls "
                                        "differ, or this rank came after its deadline",
                                        function, peer)};
  return watch_->check_peer(peer, function);
}

// Whether a member's notice fits the call. `set`: of this rank, in the first round of a shrink.
Status NoticeExchange::check_info(const char* function, const SplitInfo& info, const RankSet* set,
                                  Refusal* refusal) const {
  if (info.content == SplitInfo::kRefusal) {
    const auto differs = static_cast<uint32_t>(info.key);
    *refusal = {differs, info.held<RankSet>()};
    return sets_differ(function, rank(), shown_set_, differs, refusal->set);
  }
  const bool shrinks = info.content == SplitInfo::kMembers;
  if (shrinks != (set != nullptr))
    return {trInvalidUsage, fmt::format("{}: rank {} {} the communicator: the ranks' calls differ", function, info.rank,
                                        shrinks ? "shrinks" : "splits")};
  if (set == nullptr || info.held<RankSet>() == *set) return {};
  *refusal = {info.rank, info.held<RankSet>()};
  return sets_differ(function, rank(), *set, info.rank, refusal->set);
}

// Any rank that has called with another set. One that is excluded and has died or left is out of it. Where such a rank has
// called again, the refusals of members tell of it.
Status NoticeExchange::find_other_set(uint64_t round, const char* function, const RankSet& set,
                                      Refusal* refusal) const {
  SplitInfo info;
  uint64_t shown = 0;
  for (uint32_t peer = 0; peer < ranks(); ++peer) {
    if (peer == rank() || !find(peer, round, &info, &shown) || shown != round) continue;
    if (!set.test(peer) && (info.content != SplitInfo::kMembers || !watch_->check_peer(peer, function).ok())) continue;
    TR_RETURN_IF_ERROR(check_info(function, info, &set, refusal));
  }
  for (uint32_t peer = 0; peer < ranks(); ++peer) {
    if (!set.test(peer) || !find(peer, round + 1, &info, &shown) || shown != round + 1) continue;
    if (info.content == SplitInfo::kRefusal && info.held<RankSet>() != set)
      TR_RETURN_IF_ERROR(check_info(function, info, &set, refusal));
  }
  return {};
}

// Whether the peer's status is of `since` or later. It is asked for that until `until`, unless it has ended or left, or
// its process does not answer.
bool NoticeExchange::await_answer(uint32_t peer, Clock::time_point since, Clock::time_point until,
                                  const char* function) {
  if (peer == rank() || job_ == nullptr || statuses_->reads_status(peer)) return true;
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    std::string bytes;
    Clock::time_point when;
    if (job_->latest_status(peer, &bytes, &when) && when >= since) return true;
    const auto now = Clock::now();
    if (now >= until || !watch_->check_peer(peer, function).ok()) return false;
    if (now >= since + kAnswerTimeout && watch_->peers().is_silent(peer)) return false;
    job_->request_status(peer);
    serve_();
  }
}

// Until those that are excluded and alive have answered what they were asked after this rank's notice: they may have
// excluded this one, and go on without it. An outage of the network counts as silence only after a while.
void NoticeExchange::await_excluded(const RankSet& set, Clock::time_point shown, const char* function) {
  auto until = shown + kExcludedTimeout;
  if (timeout_ms_ > 0) until = std::min(until, shown + std::chrono::milliseconds(timeout_ms_) / 2);
  for (uint32_t peer = 0; peer < ranks(); ++peer)
    if (!set.test(peer)) (void)await_answer(peer, shown, until, function);
}

// The deadline of the call that began with round `first` has passed while this rank waited for `peer`, which may wait in
// the call itself.
std::string NoticeExchange::who_is_late(uint32_t peer, uint64_t first, const char* function) {
  const auto begin = Clock::now();
  bool has_called = false, answers = false;  // the last rank that was looked at
  const auto next = [&](uint32_t at) -> std::optional<uint32_t> {
    answers = await_answer(at, begin, Clock::now() + kAnswerTimeout, function);
    if (!answers || watch_->peers().is_stopped(at)) return {};
    RankStatusSnapshot shown;
    const bool readable = watch_->peers().read(at, &shown);
    has_called = readable && shown.notices[first % 2].round >= first;
    return has_called && shown.waiting_for != 0 ? std::optional(shown.waiting_for - 1) : std::nullopt;
  };
  const std::vector<uint32_t> way = follow_waits(rank(), peer, next);
  const uint32_t last = way.back();
  const bool is_circle = last == rank() || std::count(way.begin(), way.end(), last) > 1;
  std::string text = watch_->peers().describe(last);
  if (is_circle)
    text += fmt::format(" and {} wait for each other: what they show has not arrived",
                        watch_->peers().describe(way.size() > 1 ? way[way.size() - 2] : peer));
  else if (watch_->peers().is_stopped(last))
    text += " does not answer";
  else if (!answers)
    text = no_answer_of(last);
  else if (has_called)
    text += " has called it, and waits for no other";
  else
    text += fmt::format(" has not called it within {:g} s", seconds(std::chrono::milliseconds(timeout_ms_)));
  if (way.size() > 1) text += fmt::format(". Rank {} waited for rank {}", rank(), peer);
  for (size_t i = 1; i < way.size(); ++i) text += fmt::format(", which waited for rank {}", way[i]);
  return text;
}

// The network on the way to the peer may be cut: the text does not blame the peer.
std::string NoticeExchange::no_answer_of(uint32_t peer) const {
  const std::string way = job_ != nullptr ? job_->heard_through() : "";
  return fmt::format("no answer of {} has come{}{}", watch_->peers().describe(peer), way.empty() ? "" : ": ", way);
}

// For whom members that do not come to the new communicator wait in this one.
std::string NoticeExchange::waits_of(const std::vector<uint32_t>& members, const char* function) {
  const auto now = Clock::now();
  const std::vector<uint32_t> asked(members.begin(),
                                    members.begin() + static_cast<std::ptrdiff_t>(std::min(members.size(), kMaxNamed)));
  if (job_ != nullptr)
    for (uint32_t member : asked) job_->request_status(member);
  std::string text;
  for (uint32_t member : asked) {
    RankStatusSnapshot shown;
    const bool knows =
        await_answer(member, now, now + kAnswerTimeout, function) && watch_->peers().read(member, &shown);
    if (!knows || member == rank() || shown.waiting_for == 0 || shown.waiting_for == rank() + 1) continue;
    text += fmt::format("{}{} waits for {}", text.empty() ? ". Meanwhile " : "; ", watch_->peers().describe(member),
                        watch_->peers().describe(shown.waiting_for - 1));
  }
  return text;
}

// Shows why this rank ends its call, and stays until the others can have seen it.
void NoticeExchange::refuse(const std::vector<uint32_t>& members, const char* function, const Refusal& refusal) {
  SplitInfo info{0, static_cast<int32_t>(refusal.rank), rank(), SplitInfo::kNothing, {}};
  info.hold(SplitInfo::kRefusal, refusal.set);
  const uint64_t round = show(info);
  const auto now = Clock::now();
  const auto until = std::min(now + kRefusalTimeout, std::max(watch_->call_deadline(), now + kLateRefusalTimeout));
  for (const uint32_t member : members)
    while (member != rank() && Clock::now() < until && !has_shown(member, round) &&
           watch_->check_peer(member, function).ok()) {
      serve_();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// Why a round ends without the notice of a member. One that has shown its own and is gone since may have ended because
// of another one's death, and is no cause.
Status NoticeExchange::who_is_gone(const std::vector<uint32_t>& members, uint64_t round, const char* function,
                                   const std::function<Status()>& look) {
  // A member's next call shows that this one has ended for it: because of a death, perhaps, that is yet to be heard here.
  const auto until = std::min(Clock::now() + kMaxNewsTime, watch_->call_deadline());
  const auto has_gone_on = [&](uint32_t member) {
    SplitInfo info;
    uint64_t shown = 0;
    return find(member, round, &info, &shown) && shown > round;
  };
  bool ends = std::none_of(members.begin(), members.end(), has_gone_on);
  for (Clock::time_point next_look; !ends; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const auto now = Clock::now();
    ends = now >= until;
    serve_();
    if (!ends && now < next_look) continue;
    TR_RETURN_IF_ERROR(look());
    TR_RETURN_IF_ERROR(watch_->peers().check_deaths(members, function));
    next_look = Clock::now() + look_period(ranks());
  }
  for (const uint32_t member : members) {
    SplitInfo info;
    bool arrived = false;
    if (Status status = read(member, round, function, &info, &arrived); !status.ok()) return status;
  }
  return {};
}

// Shows `own` to the other members and waits for theirs. With a set, all ranks that call must give the same.
Status NoticeExchange::exchange(const std::vector<uint32_t>& members, const char* function, const SplitInfo& own,
                                const RankSet* set, std::vector<SplitInfo>* infos) {
  const uint64_t round = show(own);
  if (set != nullptr) shown_set_ = *set;
  const auto begin = Clock::now(), deadline = begin + std::chrono::milliseconds(timeout_ms_);
  auto next_look = begin;
  Refusal refusal{rank(), {}};
  const auto end = [&](Status status) {
    if (!status.ok() && set != nullptr && refusal.rank != rank()) refuse(members, function, refusal);
    return status;
  };
  const auto look = [&] { return set == nullptr ? Status() : find_other_set(round, function, *set, &refusal); };
  Backoff backoff;
  infos->resize(members.size());
  for (size_t i = 0; i < members.size();) {
    bool arrived = false;
    Status status = read(members[i], round, function, &(*infos)[i], &arrived);
    if (!status.ok()) {
      if (Status other = look(); !other.ok()) return end(other);
      if (Status gone = who_is_gone(members, round, function, look); !gone.ok()) return end(gone);
      return status;
    }
    if (arrived) {
      if (status = check_info(function, (*infos)[i], set, &refusal); !status.ok()) return end(status);
      ++i;
      backoff.reset();
      continue;
    }
    if (Clock::now() >= next_look) {
      if (status = look(); !status.ok()) return end(status);
      // Also of those that it does not wait for now: the one that it waits for may have left the call because of that
      // death.
      TR_RETURN_IF_ERROR(watch_->peers().check_deaths(members, function));
      next_look = Clock::now() + look_period(ranks());
      context_->status->waiting_for.store(members[i] + 1, std::memory_order_relaxed);
    }
    if (const auto now = Clock::now(); timeout_ms_ > 0 && now > std::min(deadline, watch_->call_deadline()))
      return watch_->late(function, members, [&, peer = members[i], first = round - (round - 1) % kRoundsOfSplit] {
        return who_is_late(peer, first, function);
      });
    serve_();
    (void)backoff.pause();
  }
  context_->status->waiting_for.store(0, std::memory_order_relaxed);
  if (set != nullptr && job_ != nullptr) await_excluded(*set, begin, function);
  return end(look());
}

}  // namespace treering
