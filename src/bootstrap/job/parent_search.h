// SPDX-License-Identifier: Apache-2.0
// ParentSearch: which processes one asks to be its parent in the tree, in which order and for how long, and when it
// gives up. No I/O, no clock.
//
//   begin() -> next() -> failed() | no_answer() and failed() -> next() ... -> end(), when it has a parent
//                                                             '-> outcome(), when next() has none left
//
// The candidates are the process's ancestors, and then the processes in the order of their numbers up to its own, so
// that two that seek cannot choose each other. Those that have left may still be relays, but not for long: they come
// last. A parent that is silent is asked again only while the ranks meet, when few others are known: another of its
// addresses may answer.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/process_tree.h"
#include "core/status.h"

namespace treering {

// While the ranks meet, a candidate may take so long to answer. Then the next one is asked, after the last the first again.
constexpr auto kAttachTimeout = std::chrono::seconds(5);
constexpr auto kReattachTimeout = std::chrono::seconds(2);
constexpr size_t kMaxOfHost = 6;  // candidates

class ParentSearch {
 public:
  ParentSearch(const ProcessTree& tree, const FailureDetector& detector) : tree_(tree), detector_(detector) {}

  // From the rendezvous; the parent first.
  void set_ancestors(std::vector<Place> ancestors) { ancestors_ = std::move(ancestors); }
  const std::vector<Place>& ancestors() const { return ancestors_; }

  // The deadline has passed while the ranks met: the failure where the parent, or the one that is asked to be it, does not
  // answer. Else ok. `heard`: when the parent was, if there is one.
  Status deadline_passed(const Place& own, Clock::time_point heard, Clock::time_point now) const;

  // Begins with all candidates. A search that did not end goes on: its time counts since it first began.
  void begin(Clock::time_point now);
  // Tries one process alone, as a top does: it stays the top if that fails.
  void begin_with(const Place& place);
  std::optional<Place> next();
  void try_again(const Place& place) { untried_.insert(untried_.begin(), place); }
  // How long a candidate may take to answer. `in_rendezvous`: the ranks still meet.
  Clock::duration timeout_for(const Place& place, bool in_rendezvous, Clock::time_point now) const;
  void no_answer(const Place& place);
  // Returns what it adds to the reasons; nothing for a process that has left.
  std::string failed(const Place& place, const std::string& reason, Clock::time_point now);
  const std::string& reasons() const { return reasons_; }  // why no candidate of this search is the parent
  const std::set<uint32_t>& unresponsive() const {
    return unresponsive_;
  }  // processes that have not answered in this search
  // No candidate is left after the rendezvous.
  enum class Outcome { kSearchAgain, kStayTop, kBecomeTop };
  Outcome outcome(Clock::time_point now) const;
  // While the ranks meet and no candidate is left: whether to begin again. One that did not answer may do so before the
  // deadline. On another machine a firewall may have refused for a moment.
  bool may_yet_answer(const Place& own, Clock::time_point now) const;
  void end() { seeking_since_ = refused_since_ = {}; }

  // A process deserts this part of the tree, as `from` told. Several may at once, each to another top: the parts become
  // one when each of these is told of the next. `busy`: this process seeks a parent or tries one; it is told again by
  // take_reparented().
  enum class Follow { kNothing, kLater, kAttach, kTellParent };
  Follow follow(const MovingMessage& reparented, uint32_t from, bool busy, Clock::time_point now);
  std::vector<std::pair<MovingMessage, uint32_t>> take_reparented() { return std::exchange(reparented_, {}); }

 private:
  std::vector<Place> candidates() const;
  bool may_be_late(Clock::time_point now) const;

  const ProcessTree& tree_;
  const FailureDetector& detector_;
  std::vector<Place> ancestors_;
  std::vector<Place> untried_;
  std::string reasons_;
  std::optional<Clock::time_point> seeking_since_, refused_since_;
  std::set<uint32_t> unresponsive_, unresponsive_hosts_;
  std::vector<std::pair<MovingMessage, uint32_t>> reparented_;  // and who told of them
};

}  // namespace treering
