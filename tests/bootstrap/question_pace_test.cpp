// SPDX-License-Identifier: Apache-2.0
// What a waiting rank asks others: each in its turn, and never much more than is answered.
#include "bootstrap/question_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
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
          pace.answered(questions[seen].rank, begin + milliseconds(questions[seen].at_ms), now);
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
  const auto answered = [&](int question, int at) {
    pace.answered(1, begin + milliseconds(question), begin + milliseconds(at));
  };
  for (const int at : {0, 20, 60}) EXPECT_EQ(asks(at), 1u);
  EXPECT_FALSE(asks(61));
  answered(60, 61);  // the first two were lost
  EXPECT_FALSE(asks(69));
  EXPECT_EQ(asks(70), 1u);
  answered(70, 72);
  EXPECT_FALSE(asks(79));
  EXPECT_EQ(asks(80), 1u);
}

TEST(QuestionPace, ASlowAnswerMakesThePauseFourTimesAsLong) {
  QuestionPace pace(2);
  const Clock::time_point begin = Clock::now();
  const auto asks = [&](int at) { return pace.want(1, begin + milliseconds(at)), pace.next(begin + milliseconds(at)); };
  const auto answered = [&](int question, int at) {
    pace.answered(1, begin + milliseconds(question), begin + milliseconds(at));
  };
  EXPECT_TRUE(asks(0));
  EXPECT_TRUE(asks(20));
  answered(0, 50);
  EXPECT_FALSE(asks(59));  // the answer of the latest is still to come
  EXPECT_TRUE(asks(60));   // or was lost
  answered(20, 70);
  answered(60, 110);
  EXPECT_FALSE(asks(259));
  EXPECT_TRUE(asks(260));
  // One that takes seconds: 320 ms after the answer, and again after twice the mean of 8 answers.
  answered(260, 3260);
  EXPECT_FALSE(asks(3579));
  EXPECT_TRUE(asks(3580));
  EXPECT_FALSE(asks(4358));
  EXPECT_TRUE(asks(4359));
}

TEST(QuestionPace, AnAnswerToNoQuestionIsIgnored) {
  QuestionPace pace(2);
  const Clock::time_point begin = Clock::now();
  pace.want(1, begin);
  EXPECT_TRUE(pace.next(begin));
  for (const Clock::time_point odd : {begin + milliseconds(1), Clock::time_point::min(), Clock::time_point::max()})
    pace.answered(1, odd, begin + milliseconds(2));
  pace.want(1, begin + milliseconds(19));
  EXPECT_FALSE(pace.next(begin + milliseconds(19)));
  pace.want(1, begin + milliseconds(20));
  EXPECT_TRUE(pace.next(begin + milliseconds(20)));
}

// All ranks of a job want to know of all others, and each question goes through one process, which has time for
// `a_second` of them; the answers come when it has. Returns how long questions waited there at most after `settled`.
milliseconds longest_wait(uint32_t ranks, uint32_t a_second, milliseconds settled, milliseconds run_time) {
  struct Waits {
    uint32_t asks, rank;
    Clock::time_point when;
  };
  std::vector<QuestionPace> paces(ranks, QuestionPace(ranks));
  std::deque<Waits> queue;
  const Clock::time_point begin = Clock::now();
  Clock::duration longest{};
  constexpr milliseconds kStep(5);
  for (Clock::duration at{}, had_time_at{}; at < run_time; at += kStep) {
    const Clock::time_point now = begin + at;
    for (; !queue.empty() && had_time_at <= at; had_time_at += std::chrono::microseconds(1'000'000 / a_second)) {
      const Waits next = queue.front();
      queue.pop_front();
      if (at >= settled) longest = std::max(longest, now - next.when);
      paces[next.asks].answered(next.rank, next.when, now);
    }
    if (queue.empty()) had_time_at = at;
    for (uint32_t asks = 0; asks < ranks; ++asks) {
      for (uint32_t rank = 0; rank < ranks; ++rank)
        if (rank != asks) paces[asks].want(rank, now);
      while (const auto rank = paces[asks].next(now)) queue.push_back({asks, *rank, now});
    }
  }
  return std::chrono::duration_cast<milliseconds>(longest);
}

// What is to be told meanwhile waits as long as a question to each rank from each takes, not longer and longer. It takes a
// while until the ranks know how slow the answers are.
TEST(QuestionPace, ABusyTreeIsNotAskedMoreThanItAnswers) {
  struct Tree {
    uint32_t ranks, a_second;
  };
  for (const auto& [ranks, a_second] : {Tree{9, 50}, Tree{9, 200}, Tree{9, 1000}, Tree{32, 200}, Tree{32, 1000}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << a_second << " answers a second");
    const milliseconds each_once(1000 * ranks * (ranks - 1) / a_second);
    EXPECT_LE(longest_wait(ranks, a_second, {}, 12 * each_once), 6 * each_once);
    EXPECT_LE(longest_wait(ranks, a_second, 10 * each_once, 12 * each_once), each_once);
  }
}

TEST(QuestionPace, WhoIsWantedOnceIsAskedInTurn) {
  QuestionPace pace(12);
  const Clock::time_point begin = Clock::now();
  for (uint32_t rank = 0; rank < 12; ++rank) pace.want(rank, begin);
  std::vector<uint32_t> asked;
  while (const auto rank = pace.next(begin)) asked.push_back(*rank);
  EXPECT_EQ(asked, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  pace.answered(3, begin, begin + milliseconds(1));
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
