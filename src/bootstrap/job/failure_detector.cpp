// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/failure_detector.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace treering {

using Next = FailureDetector::Step::Next;

bool FailureDetector::take_loss(uint32_t process, Clock::time_point now) {
  broken_.erase(process);
  return process != tree_.own() && lost_.try_emplace(process, now).second;
}

bool FailureDetector::take_silence(const NoticeMessage& notice, Clock::time_point now) {
  if (is_lost(notice.process)) return false;
  auto [entry, is_new] = silent_.try_emplace(notice.process);
  if (!is_new) return false;
  const auto silence = notice.other > 0 ? std::chrono::milliseconds(notice.other) : kSilence;
  entry->second = {tree_.present_ranks(notice.process), tree_.say(notice), now - silence, notice.other > 0};
  return true;
}

bool FailureDetector::take_move(uint32_t process) {
  broken_.erase(process);
  return silent_.erase(process) != 0;
}

std::vector<SilentRanks> FailureDetector::silent_ranks() const {
  std::vector<SilentRanks> all;
  for (const auto& [process, entry] : silent_)
    if (!entry.ranks.empty()) all.push_back(entry);
  return all;
}

std::set<uint32_t> FailureDetector::silent_processes() const {
  std::set<uint32_t> all;
  for (const auto& [process, entry] : silent_) all.insert(process);
  return all;
}

std::optional<SilentRanks> FailureDetector::silent_relay() const {
  const auto found = silent_.find(tree_.parent());
  if (!tree_.has_parent() || found == silent_.end() || !found->second.ranks.empty()) return {};
  return found->second;
}

FailureDetector::Hearing FailureDetector::listen(uint32_t neighbour, Clock::duration silence) {
  const auto unheard = unheard_.find(neighbour);
  if (silence < kSilence) {
    if (unheard == unheard_.end()) return {};
    const bool was_warned = unheard->second;
    unheard_.erase(unheard);
    return {.change = Change::kAnswersAgain, .warn = was_warned, .spread = is_silent(neighbour)};
  }
  if (unheard != unheard_.end()) return {};
  const bool is_news = !is_silent(neighbour);
  const bool warn = is_news && !tree_.has_left(neighbour);
  unheard_[neighbour] = warn;
  return {.change = Change::kFellSilent, .warn = warn, .spread = is_news};
}

bool FailureDetector::hears_a_child() const {
  return std::any_of(tree_.children().begin(), tree_.children().end(),
                     [this](uint32_t child) { return unheard_.count(child) == 0; });
}

void FailureDetector::connected(uint32_t neighbour) {
  unheard_.erase(neighbour);
  broken_.erase(neighbour);
  gone_.erase(neighbour);
}

pid_t FailureDetector::pid_of_broken(uint32_t process) const {
  const auto broken = broken_.find(process);
  return broken == broken_.end() ? 0 : broken->second.pid;
}

// If it lives it comes back, here or elsewhere in the tree.
FailureDetector::Step FailureDetector::examine(uint32_t process, bool pid_has_ended, bool running,
                                               Clock::time_point now) const {
  const auto found = broken_.find(process);
  if (found == broken_.end()) return {};
  const Broken& broken = found->second;
  if (pid_has_ended)
    return {.next = Next::kTellLost, .text = fmt::format("its process has ended without leaving ({})", broken.reason)};
  const Clock::duration timeout = !running && broken.was_reset ? kReturnAfterReset : kReturnTimeout;
  const bool patient = now - broken.since < timeout;
  if (!running && !patient)
    return {.next = Next::kTellLost,
            .text = fmt::format("its connection has ended ({}), and it has not come back", broken.reason)};
  if (running && (broken.pid == 0 || !patient)) return {.next = Next::kProbe};
  return {.next = Next::kExamineAgain, .after = broken.pid > 0 ? Clock::duration(kDeathPeriod) : timeout};
}

// Only a refusal at all addresses of a process says that it has ended, or that it has left: one that is stopped does not
// answer.
FailureDetector::Step FailureDetector::probed(uint32_t process, Answer answer, Clock::time_point now) {
  const auto broken = broken_.find(process);
  const bool is_broken = broken != broken_.end();
  if (!is_broken && answer == Answer::kListens) {
    const std::vector<uint32_t> all = unreached(now);
    if (std::binary_search(all.begin(), all.end(), process)) return {.next = Next::kAttach};
  }
  if (!is_broken && answer == Answer::kRefuses && tree_.has_left(process)) relay_is_gone(process, now);
  if (!is_broken && (!tree_.is_top() || adrift_.count(process) + elsewhere_.count(process) == 0)) return {};
  if (answer == Answer::kRefuses) {
    // A firewall may refuse for a moment, too.
    if (is_broken && now - broken->second.since < kReturnTimeout)
      return {.next = Next::kExamineAgain, .after = kReturnTimeout};
    return {
        .next = Next::kTellLost,
        .text = fmt::format(
            "{}nothing listens at its addresses any more: it has ended, has closed its sockets, or something refuses "
            "connections in its place",
            is_broken ? fmt::format("its connection has ended ({}), and ", broken->second.reason) : "")};
  }
  if (answer == Answer::kHasNoJob && !is_broken)
    return {.next = Next::kTellLost,
            .text = "another communicator's process listens at its addresses: it has left this one, or has ended"};
  // The other part lives, and brings the news of those that have left.
  if (answer == Answer::kListens && elsewhere_.count(process) != 0)
    for (auto& [other, since] : elsewhere_) since = now;
  if (cut_at(process, now) != kNobody) return {};  // the silence of what is on the way says enough
  if (answer == Answer::kListens) {
    // This process has found another parent: that one need not come back here.
    if (is_broken && broken->second.was_parent && tree_.has_parent()) broken_.erase(broken);
    return {.next = Next::kTellHeard};
  }
  if (answer != Answer::kNone || is_silent(process)) return {};
  return {.next = Next::kTellSilent};
}

bool FailureDetector::conclude_loss(uint32_t process) {
  broken_.erase(process);
  return !is_lost(process) && !tree_.has_left(process);
}

std::vector<uint32_t> FailureDetector::overdue(Clock::time_point now) const {
  std::vector<uint32_t> all;
  for (const auto& [process, broken] : broken_)
    if (now - broken.since >= kReturnTimeout) all.push_back(process);
  return all;
}

void FailureDetector::become_top(Clock::time_point now) {
  top_since_ = now;
  adrift_.clear();
  elsewhere_.clear();
}

// Processes with ranks that have not ended and hang, as far as this one knows, from one that never held a rank and is
// gone or silent.
std::vector<uint32_t> FailureDetector::below_gone_relays() const {
  std::vector<uint32_t> result;
  for (uint32_t process = 0; process < tree_.size(); ++process) {
    const uint32_t parent = tree_.parent_of(process);
    const bool is_cut =
        parent < tree_.size() && !tree_.holds_ranks(parent) && (gone_.count(parent) != 0 || is_silent(parent));
    if (is_cut && !tree_.has_left(process) && process != tree_.own() && !is_lost(process)) result.push_back(process);
  }
  return result;
}

// Whether a process hangs from another top, as far as is known, or was a child and has gone elsewhere: nothing on its way
// is lost, silent or broken, which others look after, or has left.
bool FailureDetector::hangs_elsewhere(uint32_t process) const {
  for (uint32_t i = 0; i < tree_.size(); ++i) {
    if (has_ended(process) || is_silent(process) || tree_.has_left(process)) return false;
    const uint32_t above = tree_.parent_of(process);
    if (above == tree_.own()) return !tree_.is_child(process);
    if (above >= tree_.size()) return true;
    process = above;
  }
  return false;
}

std::vector<uint32_t> FailureDetector::elsewhere(Clock::time_point now) const {
  std::vector<uint32_t> result;
  if (!tree_.is_top() || other_part(now) != kNobody) return result;
  for (uint32_t process = tree_.own() + 1; process < tree_.size(); ++process)
    if (hangs_elsewhere(process)) result.push_back(process);
  return result;
}

uint32_t FailureDetector::cut_at(uint32_t process, Clock::time_point now) const {
  uint32_t below = process, above = tree_.parent_of(process);
  for (uint32_t i = 0; i < tree_.size() && above < tree_.size(); ++i, below = above, above = tree_.parent_of(above)) {
    // What is said to hang from this process may have lost the connection, and be a top itself.
    if (above == tree_.own()) return tree_.is_child(below) ? above : kNobody;
    // None can have come to this one before it was the top.
    if (auto dead = lost_.find(above); dead != lost_.end() && now - std::max(dead->second, top_since_) > kCutOffAfter)
      return above;
    if (auto unresponsive = silent_.find(above);
        unresponsive != silent_.end() && now - unresponsive->second.since >= kCutOffAfter)
      return above;
  }
  return kNobody;
}

std::vector<NoticeMessage> FailureDetector::cut_off(Clock::time_point now) const {
  std::vector<NoticeMessage> notices;
  if (!tree_.is_top() || (lost_.empty() && silent_.empty())) return notices;
  for (uint32_t process = 0; process < tree_.size(); ++process) {
    if (process == tree_.own() || is_lost(process) || is_silent(process) || tree_.has_left(process)) continue;
    const uint32_t above = tree_.is_child(process) ? tree_.own() : cut_at(process, now);
    if (above == tree_.own() || above == kNobody) continue;
    const bool is_dead = is_lost(above);
    const Place& place = tree_.place(above);
    notices.push_back(
        {.type = is_dead ? NoticeType::kLost : NoticeType::kSilent,
         .process = process,
         .text = fmt::format("cut off behind process {} (pid {} on {}), which {}; whether it lives is not known", above,
                             place.pid, place.host_name, is_dead ? "was lost" : "does not answer")});
  }
  return notices;
}

std::vector<uint32_t> FailureDetector::missing(Clock::time_point now) {
  std::vector<uint32_t> probes;
  if (!tree_.is_top()) return probes;
  const auto probe_after = [&](Clock::duration time, const std::vector<uint32_t>& processes, auto* times) {
    const auto before = std::exchange(*times, {});
    for (uint32_t process : processes) {
      const auto known = before.find(process);
      const auto since = (*times)[process] = known == before.end() ? now : known->second;
      if (now - since >= time) probes.push_back(process);
    }
  };
  std::vector<uint32_t> adrift = below_gone_relays();
  std::erase_if(adrift, [&](uint32_t process) { return cut_at(process, now) == tree_.own(); });
  probe_after(kProbeAfter, adrift, &adrift_);
  probe_after(kOrphansTimeout, elsewhere(now), &elsewhere_);
  if (probes.size() <= kMaxMissing) return probes;
  std::sort(probes.begin(), probes.end());
  std::rotate(probes.begin(), std::upper_bound(probes.begin(), probes.end(), last_missing_), probes.end());
  probes.resize(kMaxMissing);
  last_missing_ = probes.back();
  return probes;
}

uint32_t FailureDetector::other_part(Clock::time_point now) const {
  if (!tree_.is_top()) return kNobody;
  for (uint32_t process = 0; process < tree_.own() && process < tree_.size(); ++process) {
    if (is_lost(process) || is_silent(process) || tree_.has_left(process)) continue;
    if (cut_at(process, now) != tree_.own() && !tree_.is_child(process)) return process;
  }
  return kNobody;
}

// Whether some ranks may hang from another top.
bool FailureDetector::lacks_ranks(Clock::time_point now) const {
  for (uint32_t process = 0; process < tree_.size(); ++process) {
    if (process == tree_.own() || is_lost(process) || tree_.has_left(process)) continue;
    if (!tree_.is_child(process) && cut_at(process, now) != tree_.own()) return true;
  }
  return false;
}

// While ranks are missing any relay is needed, for they may hang from it. Those below one that held ranks may have left
// without a trace: it is looked for during a while. One that held none and is silent, which is no end, is looked for
// always: where it is alone, no other process tells it that all have left.
bool FailureDetector::is_sought(uint32_t process, bool is_lacking, Clock::time_point now) const {
  if (!tree_.has_left(process)) return is_silent(process);
  if (tree_.holds_ranks(process)) return is_lacking && now < lacking_since_.value_or(now) + kSeekRelayTimeout;
  return is_lacking || (is_silent(process) && gone_.count(process) == 0);
}

std::vector<uint32_t> FailureDetector::unreached(Clock::time_point now) const {
  std::vector<uint32_t> all;
  if (!tree_.is_top()) return all;
  const bool lacks = tree_.own() > 0 && lacks_ranks(now);
  for (uint32_t process = 0; process < tree_.own() && process < tree_.size(); ++process) {
    if (is_lost(process) || tree_.is_child(process) || !is_sought(process, lacks, now)) continue;
    if (cut_at(process, now) != tree_.own()) all.push_back(process);
  }
  return all;
}

std::optional<uint32_t> FailureDetector::next_unreached(Clock::time_point now) {
  if (!tree_.is_top() || !lacks_ranks(now))
    lacking_since_.reset();
  else if (!lacking_since_)
    lacking_since_ = now;
  const std::vector<uint32_t> all = unreached(now);
  if (all.empty()) return {};
  const auto next = std::upper_bound(all.begin(), all.end(), last_unreached_);
  return last_unreached_ = next == all.end() ? all.front() : *next;
}

// Since when its children are on their way to another parent; the least time: they are not.
Clock::time_point FailureDetector::gone_since(uint32_t process, const std::set<uint32_t>& unresponsive,
                                              Clock::time_point verdict_at) const {
  if (auto found = lost_.find(process); found != lost_.end()) return found->second;
  if (auto found = silent_.find(process); found != silent_.end()) return found->second.since + kNoticesSilence;
  if (auto found = broken_.find(process); found != broken_.end()) return found->second.since;
  if (unresponsive.count(process) != 0) return top_since_;
  // The children of one that has left hang from it while it lives, below this process; else they are on their way.
  if (hears_a_child() || process >= tree_.size() || !tree_.has_left(process)) return {};
  if (verdict_at != Clock::time_point() || tree_.holds_ranks(process)) return verdict_at;
  // One that held ranks and left ends when all is over. The end of one that never did is not expected.
  const auto gone = gone_.find(process);
  return gone == gone_.end() ? Clock::time_point() : gone->second;
}

bool FailureDetector::awaits_orphans(const std::set<uint32_t>& unresponsive, Clock::time_point verdict_at,
                                     Clock::time_point now) const {
  if (!tree_.is_top()) return false;
  const auto is_gone = [&](uint32_t p) { return has_ended(p) || is_silent(p) || unresponsive.count(p) != 0; };
  for (uint32_t process = 0; process < tree_.size(); ++process) {
    if (process == tree_.own() || is_gone(process) || tree_.has_left(process) || tree_.is_child(process)) continue;
    const Clock::time_point since = gone_since(tree_.parent_of(process), unresponsive, verdict_at);
    // They are as late as this one, if that has sought a parent, too.
    if (since != Clock::time_point() && now < std::max(since, top_since_) + kOrphansTimeout) return true;
  }
  return false;
}

std::vector<uint32_t> FailureDetector::untold(Clock::time_point since, Clock::time_point now) const {
  std::vector<uint32_t> all;
  if (!tree_.is_top() || now >= since + kUntoldTimeout) return all;
  for (const auto& [process, entry] : silent_) {
    const bool hears = is_lost(process) || tree_.has_left(process) || told_.count(process) != 0;
    if (!hears) all.push_back(process);
  }
  if (all.size() <= kMaxUntold) return all;
  // Others each second: those that are dialled first may be out of reach.
  const auto second = static_cast<size_t>(std::chrono::duration_cast<std::chrono::seconds>(now - since).count());
  const auto first = static_cast<std::ptrdiff_t>(second * kMaxUntold % all.size());
  std::rotate(all.begin(), all.begin() + first, all.end());
  all.resize(kMaxUntold);
  return all;
}

bool FailureDetector::is_over(Clock::time_point now) {
  for (uint32_t process = 0; process < tree_.size(); ++process)
    if (process != tree_.own() && !tree_.has_left(process) && !is_lost(process)) {
      over_since_.reset();
      return false;
    }
  if (!over_since_) over_since_ = now;
  return now - *over_since_ >= kOverAfter;
}

bool FailureDetector::is_idle(bool running, Clock::time_point now) const {
  if (tree_.has_parent() || !tree_.children().empty() || !broken_.empty()) return false;
  if (!running || !tree_.is_top()) return true;
  return unreached(now).empty() && other_part(now) == kNobody && below_gone_relays().empty() && elsewhere(now).empty();
}

}  // namespace treering
