// SPDX-License-Identifier: Apache-2.0
// NoticeLog: what a process knows of the facts that every process of a job hears, and which of them are news. No I/O.
//
//   take()      a notice has come: is it passed on, does it change anything here?
//   notices()   all that is known, for a new neighbour, which may have missed some
//
// Notices flood the tree: each process passes on what is new to it. A notice is known by its origin and number, and
// those of one origin come in their order. Several verdicts may be on their way at once, when the tree had several
// tops: all are passed on, the first to come counts.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "bootstrap/frames.h"
#include "core/clock.h"
#include "core/status.h"

namespace treering {

class NoticeLog {
 public:
  struct Taken {
    bool pass_on = false;  // to all neighbours but the one that sent it
    bool apply = false;    // it changes what this process knows
  };

  // Makes a notice one of the process `own`, with its next number. It is taken as those of others are.
  NoticeMessage number(NoticeMessage notice, uint32_t own);
  Taken take(const NoticeMessage& notice, Clock::time_point now);
  // In the order in which they came, without those that later ones replace.
  const std::vector<NoticeMessage>& notices() const { return notices_; }

  bool has_verdict() const { return verdict_at_.has_value(); }
  // The least time before there is one.
  Clock::time_point verdict_at() const { return verdict_at_.value_or(Clock::time_point()); }
  Status verdict() const;  // ok: there is none
  // The failure because of which a rank left; ok: there was none, or it is there.
  Status cause_of_leaving(uint32_t rank) const;

 private:
  uint64_t numbered_ = 0;
  std::vector<NoticeMessage> notices_;
  std::map<uint32_t, uint64_t> last_numbers_;  // by origin
  std::optional<Clock::time_point> verdict_at_;
};

}  // namespace treering
