// SPDX-License-Identifier: Apache-2.0
// Members: the ranks of this process in a job, and which of them have left. It hands to them what the job hears: what
// their threads wait for under the mutex of each, and events on the agent's thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/member.h"

namespace treering {

class Members {
 public:
  void add(std::shared_ptr<Member> member) { members_.emplace(member->request.rank, std::move(member)); }
  // By rank; twice is an error that the rendezvous root finds.
  const std::multimap<uint32_t, std::shared_ptr<Member>>& all() const { return members_; }
  // nullptr: not of this process.
  std::shared_ptr<Member> find(uint32_t rank) const;
  bool has_left(uint32_t rank) const { return left_.count(rank) != 0; }
  bool all_have_left() const;
  // Whether the communicator of one is being created.
  bool any_creates() const;
  // It gets no more events. False: it had left before.
  bool leave(uint32_t rank);

  // Changes each under its mutex and wakes those who wait for it.
  template <typename Change>
  void change(const Change& change_it) const {
    for (const auto& [rank, member] : members_) member->change([&, &each = *member] { change_it(each); });
  }
  // Their waits end with this, unless they have failed already.
  void fail(const Status& status) const;
  void tell(const std::function<void(const MemberEvents&)>& event) const;
  // Questions to other ranks may have been lost.
  void tree_changed() const;
  // Without waking anyone: the agent has ticked, or is late by `pause`, or ticks no more.
  void ticks(Clock::time_point now) const;
  void ends_tick(const OwnPause* pause) const;

 private:
  std::multimap<uint32_t, std::shared_ptr<Member>> members_;
  std::set<uint32_t> left_;
};

}  // namespace treering
