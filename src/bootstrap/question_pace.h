// SPDX-License-Identifier: Apache-2.0
// QuestionPace: when a rank that waits may ask another one for its status (again). Time and answers in, decisions out.
//
//   question --> answer --> pause --> question          question --> no answer: 2, 4, 8 ... pauses --> question
//
// Each rank that waits wants to know of all others, and the control tree carries introductions, too. So a rank has few
// questions under way at a time, some 400 a second, and asks less what is slow to answer: the tree never holds more
// than it carries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "core/clock.h"

namespace treering {

class QuestionPace {
 public:
  explicit QuestionPace(uint32_t ranks)
      : pause_(std::clamp(ranks * kPauseOfRank, kShortest, kLongest)), most_under_way_(std::max(8u, ranks / 16)) {}

  // True: the caller asks the rank now.
  bool ask(uint32_t rank, Clock::time_point now) {
    Asked& asked = ranks_[rank];
    const bool is_answered = asked.answered >= asked.when;  // also before the first question
    if (now - asked.when < (is_answered ? pause_ : asked.unanswered_pause)) return false;
    std::erase_if(under_way_, [&](uint32_t other) {
      const Asked& one = ranks_[other];
      return other == rank || one.answered >= one.when || now - one.when >= one.unanswered_pause;
    });
    if (under_way_.size() >= most_under_way_) return false;
    asked.unanswered_pause = std::min(is_answered ? 2 * pause_ : 2 * asked.unanswered_pause, 2 * kLongest);
    asked.when = now;
    under_way_.push_back(rank);
    return true;
  }
  void answered(uint32_t rank, Clock::time_point now) { ranks_[rank].answered = now; }

 private:
  static constexpr Clock::duration kPauseOfRank = std::chrono::microseconds(2500);
  // A question is lost where the tree is mended; those who find out what went wrong wait 700 ms for answers.
  static constexpr Clock::duration kShortest = std::chrono::milliseconds(10), kLongest = std::chrono::milliseconds(160);

  struct Asked {
    Clock::time_point when{}, answered{};
    Clock::duration unanswered_pause{};
  };

  const Clock::duration pause_;
  const size_t most_under_way_;
  std::map<uint32_t, Asked> ranks_;
  std::vector<uint32_t> under_way_;
};

}  // namespace treering
