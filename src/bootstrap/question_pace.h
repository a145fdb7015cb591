// SPDX-License-Identifier: Apache-2.0
// QuestionPace: which ranks a rank that waits asks for their status, and when. Time and answers in, decisions out.
//
//   want() --> | rank 5 | rank 9 | ... | --next()--> under way (few) --answered()--> pause --> want() ...
//                                                       '-- no answer: 320 ms or more --> want() ...
//
// Each rank that waits wants to know of all others, and the control tree carries introductions, too. So a rank has few
// questions under way at a time, and one of up to 64 ranks asks at most 400 times a second. Where a rank's answers take
// long, the way to it is busy, perhaps with the questions of all: it is asked less often, and no question to it counts as
// lost before the answer can be there. What was repeated would make all answers later still, as in a network without
// congestion control (V. Jacobson, Congestion Avoidance and Control, 1988).
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
    if (asked.is_wanted || !is_due(asked, now)) return;
    asked.is_wanted = true;
    wanted_.push_back(rank);
  }
  // Whether next() names a rank.
  bool has_next(Clock::time_point now) {
    while (!wanted_.empty() && !is_due(ranks_[wanted_.front()], now)) {  // its answer came while it waited for its turn
      ranks_[wanted_.front()].is_wanted = false;
      wanted_.pop_front();
    }
    if (wanted_.empty()) return false;
    std::erase_if(under_way_, [&](uint32_t rank) { return is_answered(rank) || now - ranks_[rank].when >= kUnderWay; });
    return under_way_.size() < most_under_way_;
  }
  // Whom to ask now; called until there is none, after want() and answered().
  std::optional<uint32_t> next(Clock::time_point now) {
    if (!has_next(now)) return {};
    const uint32_t rank = wanted_.front();
    wanted_.pop_front();
    Asked& asked = ranks_[rank];
    asked.patience = asked.is_answered ? kPatience : std::min(2 * asked.patience, kMaxPatience);
    asked.is_wanted = asked.is_answered = false;
    asked.when = now;
    std::erase(under_way_, rank);
    under_way_.push_back(rank);
    return rank;
  }
  // `question`: when it was asked. One that was repeated since says how long answers take.
  void answered(uint32_t rank, Clock::time_point question, Clock::time_point now) {
    Asked& asked = ranks_[rank];
    if (asked.is_answered || question > asked.when || question < Clock::time_point()) return;
    asked.answer_time = answer_time_ = std::clamp(now - question, Clock::duration(1), kMaxAnswerTime);
    asked.is_answered = question == asked.when;
  }
  // Whether the latest question to the rank is, or there was none.
  bool is_answered(uint32_t rank) const { return !ranks_.contains(rank) || ranks_.at(rank).is_answered; }

 private:
  static constexpr Clock::duration kPauseOfRank = std::chrono::microseconds(2500);
  static constexpr Clock::duration kShortest = std::chrono::milliseconds(10), kLongest = std::chrono::milliseconds(160);
  static constexpr Clock::duration kPatience = std::chrono::milliseconds(320), kMaxPatience = std::chrono::seconds(10);
  static constexpr Clock::duration kUnknown{}, kMaxAnswerTime = std::chrono::seconds(10);
  // A rank that does not answer holds up the others' turns no longer: those who find out what went wrong give all ranks
  // together 700 ms.
  static constexpr Clock::duration kUnderWay = std::chrono::milliseconds(30);

  struct Asked {
    Clock::time_point when{};
    Clock::duration answer_time = kUnknown;  // of its last answer
    Clock::duration patience{};              // with the latest question, see patience_with()
    bool is_wanted = false;
    bool is_answered = true;
  };
  bool is_due(const Asked& asked, Clock::time_point now) const {
    return now - asked.when >= (asked.is_answered ? pause_after(asked) : patience_with(asked));
  }
  // Until a question counts as lost. It doubles, but once the rank or, before it has, another one has answered, which
  // says how long answers take, only to what those who find out what went wrong give all ranks (700 ms).
  Clock::duration patience_with(const Asked& asked) const {
    const Clock::duration time = asked.answer_time != kUnknown ? asked.answer_time : answer_time_;
    return std::max(2 * time, std::min(asked.patience, time == kUnknown ? kMaxPatience : 2 * kPatience));
  }
  // From a question that was answered to the next.
  Clock::duration pause_after(const Asked& asked) const {
    return std::max(pause_, asked.answer_time + std::min(3 * asked.answer_time, kLongest));
  }

  const Clock::duration pause_;
  const size_t most_under_way_;
  std::map<uint32_t, Asked> ranks_;
  std::deque<uint32_t> wanted_;
  std::vector<uint32_t> under_way_;
  Clock::duration answer_time_ = kUnknown;  // of the last answer of any rank
};

}  // namespace treering
