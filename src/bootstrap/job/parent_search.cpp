// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/parent_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace treering {

std::vector<Place> ParentSearch::candidates() const {
  std::vector<Place> places;
  std::map<uint32_t, size_t> of_host;
  auto add = [&](const Place& place, bool left) {
    const uint32_t process = place.process;
    const bool known = std::any_of(places.begin(), places.end(), [&](const Place& p) { return p.process == process; });
    if (known || process == tree_.own() || detector_.is_lost(process) || detector_.is_silent(process)) return;
    if (tree_.is_child(process) || tree_.has_left(process) != left) return;
    if (tree_.is_parent(process) && tree_.has_met()) return;
    if (places.size() < kMaxParents && ++of_host[place.host] <= kMaxOfHost) places.push_back(place);
  };
  for (bool left : {false, true}) {
    for (const Place& place : ancestors_) add(place, left);
    for (uint32_t process = 0; process < tree_.own() && process < tree_.size(); ++process)
      add(tree_.place(process), left);
  }
  return places;
}

// An attached process does not report the rendezvous root (process 0), which has its own deadline and names who is missing.
Status ParentSearch::deadline_passed(const Place& own, Clock::time_point heard, Clock::time_point now) const {
  if (ancestors_.empty()) return {};
  const Place& parent = ancestors_.front();
  if (parent.process == 0) {
    if (tree_.has_parent()) return {};
    return {trTimeout,
            fmt::format("the deadline passed while the ranks met: the process that made the unique id (pid {} on {}) "
                        "does not answer rank {} (pid {} on {})",
                        parent.pid, parent.host_name, own.rank, own.pid, own.host_name)};
  }
  if (tree_.has_parent() && (!tree_.is_parent(parent.process) || now - heard < kSilence)) return {};
  return {trTimeout,
          fmt::format(
              "the deadline passed while the ranks met: rank {} (pid {} on {}), through which rank {} (pid {} on {}) "
              "hears of the others, does not answer",
              parent.rank, parent.pid, parent.host_name, own.rank, own.pid, own.host_name)};
}

void ParentSearch::begin(Clock::time_point now) {
  unresponsive_.clear();
  unresponsive_hosts_.clear();
  reasons_.clear();
  if (!seeking_since_) seeking_since_ = now;
  untried_ = candidates();
}

void ParentSearch::begin_with(const Place& place) {
  reasons_.clear();
  unresponsive_hosts_.erase(place.host);  // it has answered since, or may do so by now
  untried_ = {place};
}

std::optional<Place> ParentSearch::next() {
  if (untried_.empty()) return {};
  Place place = std::move(untried_.front());
  untried_.erase(untried_.begin());
  return place;
}

Clock::duration ParentSearch::timeout_for(const Place& place, bool in_rendezvous, Clock::time_point now) const {
  if (in_rendezvous) return kAttachTimeout;
  const Clock::duration timeout = unresponsive_hosts_.count(place.host) != 0 ? kMuteHostTimeout : kReattachTimeout;
  if (!seeking_since_) return timeout;
  return std::clamp<Clock::duration>(*seeking_since_ + kSearchTimeout - now, kMuteHostTimeout, timeout);
}

void ParentSearch::no_answer(const Place& place) {
  unresponsive_.insert(place.process);
  unresponsive_hosts_.insert(place.host);
}

std::string ParentSearch::failed(const Place& place, const std::string& reason, Clock::time_point now) {
  if (!refused_since_ && unresponsive_.count(place.process) == 0) refused_since_ = now;
  if (tree_.has_left(place.process)) return "";
  const std::string more = fmt::format("{}process {} (pid {} on {}): {}", reasons_.empty() ? "" : "; ", place.process,
                                       place.pid, place.host_name, reason);
  reasons_ += more;
  return more;
}

// Whether one has not answered that may just be late, as it seeks a parent itself: it would be another top.
bool ParentSearch::may_be_late(Clock::time_point now) const {
  if (!seeking_since_ || now >= *seeking_since_ + kSearchTimeout) return false;
  return std::any_of(unresponsive_.begin(), unresponsive_.end(), [this](uint32_t process) {
    if (detector_.has_ended(process) || process >= tree_.size()) return false;
    const uint32_t parent = tree_.parent_of(process);
    return detector_.has_ended(parent) || (parent < tree_.size() && tree_.has_left(parent));
  });
}

bool ParentSearch::may_yet_answer(const Place& own, Clock::time_point now) const {
  if (!unresponsive_.empty()) return true;
  const bool is_far = std::any_of(ancestors_.begin(), ancestors_.end(),
                                  [&own](const Place& place) { return place.network != own.network; });
  return is_far && refused_since_ && now < *refused_since_ + kReturnTimeout;
}

ParentSearch::Outcome ParentSearch::outcome(Clock::time_point now) const {
  if (tree_.is_top()) return Outcome::kStayTop;
  // A silent parent cannot bring a verdict: this process does without it.
  return !tree_.has_parent() && may_be_late(now) ? Outcome::kSearchAgain : Outcome::kBecomeTop;
}

ParentSearch::Follow ParentSearch::follow(const MovingMessage& reparented, uint32_t from, bool busy,
                                          Clock::time_point now) {
  if (busy) {
    reparented_.emplace_back(reparented, from);
    return Follow::kLater;
  }
  // What hangs from this one again would be a circle.
  if (tree_.is_top())
    return detector_.cut_at(reparented.new_top, now) == tree_.own() ? Follow::kNothing : Follow::kAttach;
  const bool is_top = reparented.new_top == reparented.process;
  const bool parent_knows = tree_.is_parent(from) || tree_.is_parent(reparented.process);
  return is_top && tree_.has_parent() && !parent_knows ? Follow::kTellParent : Follow::kNothing;
}

}  // namespace treering
