// SPDX-License-Identifier: Apache-2.0
// QuestionPace: which ranks a rank that waits asks for their status, and when. Time and answers in, decisions out.
//
//   want() --> | rank 5 | rank 9 | ... | --next()--> under way (few) --answered()--> pause --> want() ...
//                                                       '-- no answer: 2, 4, 8 ... pauses --> want() ...
//
// Each rank that waits wants to know of all others, and the control tree carries introductions, too. So a rank has few
// questions under way at a time, and asks a rank less often that is slow to answer. One of up to 64 ranks asks at most
// 400 times a second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/clock.h"

namespace treering {

class QuestionPace {
 public:
  explicit QuestionPace(uint32_t ranks)
      : pause_(std::clamp(ranks * kPauseOfRank, kShortest, kLongest)), most_under_way_(std::max(8u, ranks / 16)) {}

  // Asks the rank in its turn; not if it was asked a moment ago.
  void want(uint32_t rank, Clock::time_point now) {
    Asked& asked = ranks_[rank];
    if (asked.is_wanted || now - asked.when < (asked.is_answered() ? pause_ : asked.unanswered_pause)) return;
    asked.is_wanted = true;
    wanted_.push_back(rank);
  }
  // Whether next() names a rank.
  bool has_next(Clock::time_point now) {
    if (wanted_.empty()) return false;
    std::erase_if(under_way_, [&](uint32_t rank) {
      const Asked& asked = ranks_[rank];
      return asked.is_answered() || now - asked.when >= kUnderWay;
    });
    return under_way_.size() < most_under_way_;
  }
  // Whom to ask now; called until there is none, after want() and answered().
  std::optional<uint32_t> next(Clock::time_point now) {
    if (!has_next(now)) return {};
    const uint32_t rank = wanted_.front();
    wanted_.pop_front();
    Asked& asked = ranks_[rank];
    asked.is_wanted = false;
    asked.unanswered_pause = std::min(asked.is_answered() ? 2 * pause_ : 2 * asked.unanswered_pause, 2 * kLongest);
    asked.when = now;
    under_way_.push_back(rank);
    return rank;
  }
  void answered(uint32_t rank, Clock::time_point now) { ranks_[rank].answered = now; }

 private:
  static constexpr Clock::duration kPauseOfRank = std::chrono::microseconds(2500);
  static constexpr Clock::duration kShortest = std::chrono::milliseconds(10), kLongest = std::chrono::milliseconds(160);
  // A rank that does not answer holds up the others' turns no longer: those who find out what went wrong give all ranks
  // together 700 ms.
  static constexpr Clock::duration kUnderWay = std::chrono::milliseconds(30);

  struct Asked {
    Clock::time_point when{}, answered{};
    Clock::duration unanswered_pause{};
    bool is_wanted = false;
    bool is_answered() const { return answered >= when; }  // also before the first question
  };

  const Clock::duration pause_;
  const size_t most_under_way_;
  std::map<uint32_t, Asked> ranks_;
  std::deque<uint32_t> wanted_;
  std::vector<uint32_t> under_way_;
};

}  // namespace treering
