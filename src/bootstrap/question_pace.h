// SPDX-License-Identifier: Apache-2.0
// QuestionPace: which ranks a rank that waits asks for their status, and when. Time and answers in, decisions out.
//
//   want() --> | rank 5 | rank 9 | ... | --next()--> under way (few) --answered()--> pause --> want() ...
//                                                       '-- no answer: it counts as lost --> want() ...
//
// Each rank that waits wants to know of all others, and the control tree carries introductions, too. So a rank has few
// questions under way at a time, and one of up to 64 ranks asks at most 400 times a second. Where a rank's answers take
// long, the way to it is busy, perhaps with the questions of all: then the next question waits for the answer. What was
// repeated would make all answers later still, as in a network without congestion control (V. Jacobson, Congestion
// Avoidance and Control, 1988).
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
      : pause_(std::clamp(ranks * kPauseOfRank, kShortest, kLongest)),
        most_patience_(std::clamp(ranks * kPatienceOfRank, 2 * kPatience, kMaxPatience)),
        most_under_way_(std::max(8u, ranks / 16)) {}

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
    if (asked.is_answered) asked.first = now;
    asked.patience = asked.is_answered ? kPatience : std::min(2 * asked.patience, kMaxPatience);
    asked.is_wanted = asked.is_answered = false;
    asked.when = now;
    std::erase(under_way_, rank);
    under_way_.push_back(rank);
    return rank;
  }
  // `question`: when it was asked. An answer to one that was repeated since only says how long answers take.
  void answered(uint32_t rank, Clock::time_point question, Clock::time_point now) {
    Asked& asked = ranks_[rank];
    if (asked.is_answered || question < asked.first || question > asked.when) return;
    asked.answer_time = std::min(now - question, kMaxAnswerTime);
    asked.is_answered = question == asked.when;
  }
  // Questions and answers may have been lost, and from now on they may go another way.
  void tree_changed() {
    for (auto& [rank, asked] : ranks_) {
      asked.answer_time = {};
      asked.patience = kPatience;
    }
  }
  // Whether the latest question to the rank is, or there was none.
  bool is_answered(uint32_t rank) const { return !ranks_.contains(rank) || ranks_.at(rank).is_answered; }

 private:
  static constexpr Clock::duration kPauseOfRank = std::chrono::microseconds(2500);
  static constexpr Clock::duration kShortest = std::chrono::milliseconds(10), kLongest = std::chrono::milliseconds(160);
  static constexpr Clock::duration kPatience = std::chrono::milliseconds(320), kMaxPatience = std::chrono::seconds(10);
  // The more ranks ask one another, the later the first answers may come.
  static constexpr Clock::duration kPatienceOfRank = std::chrono::milliseconds(40);
  static constexpr Clock::duration kMaxAnswerTime = std::chrono::seconds(10);
  static constexpr Clock::duration kMaxRest = std::chrono::milliseconds(40);
  // A rank that does not answer holds up the others' turns no longer: those who find out what went wrong give all ranks
  // together 700 ms.
  static constexpr Clock::duration kUnderWay = std::chrono::milliseconds(30);

  struct Asked {
    Clock::time_point first{}, when{};  // the first question since the last answer to a latest one; the latest
    Clock::duration answer_time{};      // of the last answer; 0: not known
    Clock::duration patience{};         // with the latest question, where that is not known
    bool is_wanted = false;
    bool is_answered = true;
  };
  bool is_due(const Asked& asked, Clock::time_point now) const {
    return now - asked.when >= (asked.is_answered ? pause_after(asked) : patience_with(asked));
  }
  // Until a question counts as lost: at least 320 ms, then 640 ms, or twice what the rank's last answer took. As long as
  // that is not known it doubles further, up to a time that grows with the number of ranks.
  Clock::duration patience_with(const Asked& asked) const {
    const Clock::duration most = asked.answer_time > Clock::duration() ? 2 * kPatience : most_patience_;
    return std::max(2 * asked.answer_time, std::min(asked.patience, most));
  }
  // From a question that was answered to the next: it leaves the tree some time for other messages.
  Clock::duration pause_after(const Asked& asked) const {
    return std::max(pause_, asked.answer_time + std::min(asked.answer_time, kMaxRest));
  }

  const Clock::duration pause_, most_patience_;
  const size_t most_under_way_;
  std::map<uint32_t, Asked> ranks_;
  std::deque<uint32_t> wanted_;
  std::vector<uint32_t> under_way_;
};

}  // namespace treering
