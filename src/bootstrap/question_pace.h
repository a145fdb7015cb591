// SPDX-License-Identifier: Apache-2.0
// QuestionPace: which ranks a rank that waits asks for their status, and when. Time and answers in, decisions out.
//
//   want() --> | rank 5 | rank 9 | ... | --next()--> under way (few) --answered()--> pause --> want() ...
//                                                       '-- no answer: 2, 4, 8 ... pauses --> want() ...
//
// Each rank that waits wants to know of all others, and the control tree carries introductions, too. So a rank has few
// questions under way at a time, and one of up to 64 ranks asks at most 400 times a second. Where answers take long, the
// tree is busy, perhaps with the questions of all. A pause is then four times as long as the last answer took, and no
// question counts as lost before an answer can be there: what was repeated would make all answers later still, as in a
// network without congestion control (V. Jacobson, Congestion Avoidance and Control, 1988).
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
    if (asked.is_wanted || now - asked.when < (asked.is_answered ? pause_after(asked) : asked.repeat_pause)) return;
    asked.is_wanted = true;
    wanted_.push_back(rank);
  }
  // Whether next() names a rank.
  bool has_next(Clock::time_point now) {
    if (wanted_.empty()) return false;
    if (std::erase_if(under_way_, [this](uint32_t rank) { return is_answered(rank); }) > 0) patience_ = patience();
    // Those that do not answer hold up the others' turns no longer.
    const auto is_late = [&](uint32_t rank) { return now - ranks_[rank].when >= patience_; };
    if (std::erase_if(under_way_, is_late) > 0)
      patience_ = std::min(2 * patience_, std::max(kMostPatience, patience()));
    return under_way_.size() < most_under_way_;
  }
  // Whom to ask now; called until there is none, after want() and answered().
  std::optional<uint32_t> next(Clock::time_point now) {
    if (!has_next(now)) return {};
    const uint32_t rank = wanted_.front();
    wanted_.pop_front();
    Asked& asked = ranks_[rank];
    asked.repeat_pause = std::min(2 * (asked.is_answered ? pause_after(asked) : asked.repeat_pause),
                                  std::max(kLongestRepeat, 2 * answer_time_));
    asked.is_wanted = asked.is_answered = false;
    asked.when = now;
    under_way_.push_back(rank);
    return rank;
  }
  // `question`: when it was asked. One may be answered after it was repeated.
  void answered(uint32_t rank, Clock::time_point question, Clock::time_point now) {
    Asked& asked = ranks_[rank];
    if (question > asked.when || question < Clock::time_point()) return;  // of no question
    asked.answer_time = now - question;
    answer_time_ += (asked.answer_time - answer_time_) / kAnswersInMean;
    asked.is_answered |= question == asked.when;
  }
  // The latest question to it.
  bool is_answered(uint32_t rank) const { return !ranks_.contains(rank) || ranks_.at(rank).is_answered; }

 private:
  static constexpr Clock::duration kPauseOfRank = std::chrono::microseconds(2500);
  static constexpr Clock::duration kShortest = std::chrono::milliseconds(10), kLongest = std::chrono::milliseconds(160);
  static constexpr Clock::duration kLongestRepeat = 2 * kLongest;
  // Those who find out what went wrong give all ranks together 700 ms. It doubles while no answer comes.
  static constexpr Clock::duration kLeastPatience = std::chrono::milliseconds(30),
                                   kMostPatience = std::chrono::seconds(5);
  static constexpr int kAnswersInMean = 8;

  struct Asked {
    Clock::time_point when{};
    Clock::duration answer_time{};   // of the last question that was answered
    Clock::duration repeat_pause{};  // while the latest is not
    bool is_wanted = false;
    bool is_answered = true;  // the latest; also before the first
  };
  // From one question to the next.
  Clock::duration pause_after(const Asked& asked) const {
    return std::max(pause_, std::min(4 * asked.answer_time, asked.answer_time + kLongestRepeat));
  }
  Clock::duration patience() const { return std::max(kLeastPatience, 2 * answer_time_); }

  const Clock::duration pause_;
  const size_t most_under_way_;
  std::map<uint32_t, Asked> ranks_;
  std::deque<uint32_t> wanted_;
  std::vector<uint32_t> under_way_;
  Clock::duration answer_time_{};              // the mean, of all ranks
  Clock::duration patience_ = kLeastPatience;  // with those under way
};

}  // namespace treering
