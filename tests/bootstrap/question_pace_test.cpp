// SPDX-License-Identifier: Apache-2.0
// What a waiting rank asks others: never much more than is answered.
#include "bootstrap/question_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace treering {
namespace {

using std::chrono::milliseconds;

struct Question {
  uint32_t rank;
  int at_ms;
};

// What it asks in that time, where it tries all other ranks in turn at each millisecond and an answer takes so long (0:
// none comes). `most`: of how many ranks an answer was due at a time.
std::vector<Question> asked(uint32_t ranks, int tries_ms, int answer_ms, size_t* most = nullptr) {
  QuestionPace pace(ranks);
  const Clock::time_point begin = Clock::now();
  std::vector<Question> questions;
  size_t answered = 0;
  std::vector<int> due(ranks, 0);  // answers
  for (int at = 0; at < tries_ms; ++at) {
    const Clock::time_point now = begin + milliseconds(at);
    for (; answer_ms > 0 && answered < questions.size() && questions[answered].at_ms + answer_ms <= at; ++answered) {
      pace.answered(questions[answered].rank, now);
      --due[questions[answered].rank];
    }
    for (uint32_t i = 0; i + 1 < ranks; ++i) {
      const uint32_t rank = 1 + (i + static_cast<uint32_t>(at)) % (ranks - 1);
      if (!pace.ask(rank, now)) continue;
      questions.push_back({rank, at});
      ++due[rank];
    }
    const auto waited_for = static_cast<size_t>(std::count_if(due.begin(), due.end(), [](int n) { return n > 0; }));
    if (most != nullptr) *most = std::max(*most, waited_for);
  }
  return questions;
}

std::vector<int> times(const std::vector<Question>& questions) {
  std::vector<int> all;
  for (const Question& question : questions) all.push_back(question.at_ms);
  return all;
}

TEST(QuestionPace, AsksOncePerPauseWhereAnswersComeAtOnce) {
  EXPECT_EQ(times(asked(2, 45, 1)), (std::vector{0, 10, 20, 30, 40}));
}

TEST(QuestionPace, AsksLessAndLessWhereNoAnswerComes) {
  EXPECT_EQ(times(asked(2, 1300, 0)), (std::vector{0, 20, 60, 140, 300, 620, 940, 1260}));
}

TEST(QuestionPace, AnAnswerEndsTheLongPause) {
  QuestionPace pace(2);
  const Clock::time_point begin = Clock::now();
  for (const int at : {0, 20, 60}) EXPECT_TRUE(pace.ask(1, begin + milliseconds(at)));
  EXPECT_FALSE(pace.ask(1, begin + milliseconds(70)));
  pace.answered(1, begin + milliseconds(70));
  EXPECT_TRUE(pace.ask(1, begin + milliseconds(71)));
  pace.answered(1, begin + milliseconds(75));
  EXPECT_FALSE(pace.ask(1, begin + milliseconds(80)));
  EXPECT_TRUE(pace.ask(1, begin + milliseconds(81)));
}

// However many there are to ask and however slow the tree is.
TEST(QuestionPace, FewQuestionsAreUnderWayAndEachRankIsAsked) {
  for (const uint32_t ranks : {8u, 32u, 64u, 1024u})
    for (const int answer_ms : {1, 30, 300}) {
      size_t most = 0;
      constexpr int kMs = 3000;
      const std::vector<Question> questions = asked(ranks, kMs, answer_ms, &most);
      EXPECT_LE(questions.size(), std::max(6400u, ranks * 7) * kMs / 1000) << ranks << " ranks, " << answer_ms << " ms";
      // One that takes longer than its pause is not waited for.
      EXPECT_LE(most, 3 * std::max(8u, ranks / 16)) << ranks << " ranks, " << answer_ms << " ms";
      if (answer_ms > 100) continue;
      std::vector<bool> seen(ranks, false);
      for (const Question& question : questions) seen[question.rank] = true;
      EXPECT_EQ(std::count(seen.begin(), seen.end(), true), ranks - 1) << ranks << " ranks, " << answer_ms << " ms";
    }
}

}  // namespace
}  // namespace treering
