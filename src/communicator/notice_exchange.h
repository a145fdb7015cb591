// SPDX-License-Identifier: Apache-2.0
// The exchange of notices: what ranks tell one another through their status, which can be read after a failure.
//
// In a shrink the first notice of a rank is the set of ranks that it goes on with. A rank that sees another set ends
// its call with an error that says what differs, and shows a refusal as its second notice, so that those who share its
// set end with the same. Ranks that are excluded here are looked at, too: they may have excluded others than this rank
// has.
//
//   exchange()                    a round: shows what this rank has to say, and waits for the notices of the members
//   kRoundsOfSplit of a call      whatever becomes of it; skip_to() lets ranks that fail at different points agree again
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/membership.h"
#include "communicator/split_info.h"
#include "core/clock.h"
#include "core/status.h"
#include "executor/execution.h"
#include "failure/watch.h"

namespace treering {

class NoticeExchange {
 public:
  // `job` where statuses are asked for by messages, else nullptr. `serve`: what others may wait for while this rank waits.
  NoticeExchange(ExecutorContext* context, Watch* watch, const StatusReader* statuses, Membership* job, int timeout_ms,
                 std::function<void()> serve)
      : context_(context),
        watch_(watch),
        statuses_(statuses),
        job_(job),
        timeout_ms_(timeout_ms),
        serve_(std::move(serve)) {}

  // Rounds begun.
  uint64_t rounds() const { return rounds_; }
  void skip_to(uint64_t round) { rounds_ = std::max(rounds_, round); }
  // Shows `own` to the other members and waits for theirs. With a set, all ranks that call must give the same.
  Status exchange(const std::vector<uint32_t>& members, const char* function, const SplitInfo& own, const RankSet* set,
                  std::vector<SplitInfo>* infos);
  // For whom members that do not come to the new communicator wait in this one, in words.
  std::string waits_of(const std::vector<uint32_t>& members, const char* function);

 private:
  struct Refusal {  // which rank gave what other set; this rank: none did
    uint32_t rank;
    RankSet set;
  };
  uint32_t rank() const { return context_->rank; }
  uint32_t ranks() const { return context_->ranks; }
  uint64_t show(const SplitInfo& info);
  bool find(uint32_t peer, uint64_t round, SplitInfo* info, uint64_t* shown) const;
  bool has_shown(uint32_t peer, uint64_t round) const;
  Status read(uint32_t peer, uint64_t round, const char* function, SplitInfo* info, bool* arrived) const;
  Status check_info(const char* function, const SplitInfo& info, const RankSet* set, Refusal* refusal) const;
  Status find_other_set(uint64_t round, const char* function, const RankSet& set, Refusal* refusal) const;
  bool await_answer(uint32_t peer, Clock::time_point since, Clock::time_point until, const char* function);
  void await_excluded(const RankSet& set, Clock::time_point shown, const char* function);
  std::string who_is_late(uint32_t peer, uint64_t first, const char* function);
  std::string no_answer_of(uint32_t peer) const;
  Status who_is_gone(const std::vector<uint32_t>& members, uint64_t round, const char* function,
                     const std::function<Status()>& look);
  void refuse(const std::vector<uint32_t>& members, const char* function, const Refusal& refusal);

  ExecutorContext* const context_;
  Watch* const watch_;
  const StatusReader* const statuses_;
  Membership* const job_;
  const int timeout_ms_;
  const std::function<void()> serve_;
  uint64_t rounds_ = 0;
  RankSet shown_set_;  // this rank's in the last shrink
};

}  // namespace treering
