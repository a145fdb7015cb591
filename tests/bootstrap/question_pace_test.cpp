// SPDX-License-Identifier: Apache-2.0
// What a waiting rank asks others: each in its turn, and never much more than is answered.
#include "bootstrap/question_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace treering {
namespace {

using std::chrono::milliseconds;

struct Question {
  uint32_t rank;
  int at_ms;
};

// A rank that wants to know of all others, in the order of their numbers, at each millisecond. An answer takes `answer_ms`
// (0: none comes); the first `mute` ranks never answer.
struct Waiting {
  uint32_t ranks = 2;
  int answer_ms = 1;
  uint32_t mute = 0;
  size_t most_due = 0;  // ranks whose answer was awaited at a time
  std::vector<Question> questions = {};

  void run(int tries_ms) {
    QuestionPace pace(ranks);
    const Clock::time_point begin = Clock::now();
    std::vector<int> due(ranks, 0);
    size_t seen = 0;  // questions whose answer has come, or never will
    for (int at = 0; at < tries_ms; ++at) {
      const Clock::time_point now = begin + milliseconds(at);
      for (; answer_ms > 0 && seen < questions.size() && questions[seen].at_ms + answer_ms <= at; ++seen)
        if (questions[seen].rank > mute) {
          pace.answered(questions[seen].rank, now);
          --due[questions[seen].rank];
        }
      for (uint32_t rank = 1; rank < ranks; ++rank) pace.want(rank, now);
      while (const auto rank = pace.next(now)) {
        questions.push_back({*rank, at});
        ++due[*rank];
      }
      const auto waited_for = static_cast<size_t>(std::count_if(due.begin(), due.end(), [](int n) { return n > 0; }));
      most_due = std::max(most_due, waited_for);
    }
  }
  std::vector<int> times() const {
    std::vector<int> all;
    for (const Question& question : questions) all.push_back(question.at_ms);
    return all;
  }
  std::set<uint32_t> asked_before(int ms) const {
    std::set<uint32_t> asked;
    for (const Question& question : questions)
      if (question.at_ms < ms) asked.insert(question.rank);
    return asked;
  }
};

TEST(QuestionPace, AsksOncePerPauseWhereAnswersComeAtOnce) {
  Waiting waiting;
  waiting.run(45);
  EXPECT_EQ(waiting.times(), (std::vector{0, 10, 20, 30, 40}));
}

TEST(QuestionPace, AsksLessAndLessWhereNoAnswerComes) {
  Waiting waiting{.answer_ms = 0};
  waiting.run(1300);
  EXPECT_EQ(waiting.times(), (std::vector{0, 20, 60, 140, 300, 620, 940, 1260}));
}

TEST(QuestionPace, AnAnswerEndsTheLongPause) {
  QuestionPace pace(2);
  const Clock::time_point begin = Clock::now();
  const auto asks = [&](int at) { return pace.want(1, begin + milliseconds(at)), pace.next(begin + milliseconds(at)); };
  for (const int at : {0, 20, 60}) EXPECT_EQ(asks(at), 1u);
  EXPECT_FALSE(asks(70));
  pace.answered(1, begin + milliseconds(70));
  EXPECT_EQ(asks(71), 1u);
  pace.answered(1, begin + milliseconds(75));
  EXPECT_FALSE(asks(80));
  EXPECT_EQ(asks(81), 1u);
}

TEST(QuestionPace, WhoIsWantedOnceIsAskedInTurn) {
  QuestionPace pace(12);
  const Clock::time_point begin = Clock::now();
  for (uint32_t rank = 0; rank < 12; ++rank) pace.want(rank, begin);
  std::vector<uint32_t> asked;
  while (const auto rank = pace.next(begin)) asked.push_back(*rank);
  EXPECT_EQ(asked, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  pace.answered(3, begin + milliseconds(1));
  EXPECT_EQ(pace.next(begin + milliseconds(1)), 8u);
  EXPECT_FALSE(pace.next(begin + milliseconds(1)));
}

// However slow the tree is: few at a time, at most 400 a second of up to 64 ranks.
TEST(QuestionPace, FewQuestionsAreUnderWay) {
  for (const uint32_t ranks : {8u, 32u, 64u, 1024u})
    for (const int answer_ms : {1, 20, 300}) {
      Waiting waiting{.ranks = ranks, .answer_ms = answer_ms};
      waiting.run(2000);
      if (ranks <= 64) {
        EXPECT_LE(waiting.questions.size(), 800u + ranks) << ranks << " ranks, " << answer_ms << " ms";
      }
      if (answer_ms <= 20) {
        EXPECT_LE(waiting.most_due, std::max(8u, ranks / 16)) << ranks << " ranks, " << answer_ms << " ms";
      }
    }
}

// In the time that a verdict gives them, also where a host of 8 ranks is silent, and they are the first to be asked.
TEST(QuestionPace, AllRanksAreAskedWithin700Milliseconds) {
  for (const uint32_t ranks : {16u, 64u, 256u, 1024u})
    for (const uint32_t mute : {0u, 8u, 16u}) {
      Waiting waiting{.ranks = ranks, .answer_ms = 20, .mute = std::min(mute, ranks / 2)};
      waiting.run(700);
      EXPECT_EQ(waiting.asked_before(600).size(), ranks - 1) << ranks << " ranks, " << mute << " mute";
    }
}

}  // namespace
}  // namespace treering
