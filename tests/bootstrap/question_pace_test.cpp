// SPDX-License-Identifier: Apache-2.0
// What a waiting rank asks others: each in its turn, and never much more than is answered.
#include "bootstrap/question_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// One rank asks another, at times that the test says.
struct Pair {
  explicit Pair(uint32_t ranks = 2) : pace(ranks) {}
  bool asks(int at) { return pace.want(1, begin + milliseconds(at)), pace.next(begin + milliseconds(at)).has_value(); }
  void answered(int question, int at) { pace.answered(1, begin + milliseconds(question), begin + milliseconds(at)); }
  void expect_asked_next(int at) {
    EXPECT_FALSE(asks(at - 1)) << at;
    EXPECT_TRUE(asks(at)) << at;
  }
  const Clock::time_point begin = Clock::now();
  QuestionPace pace;
};

TEST(QuestionPace, AsksLessAndLessWhereNoAnswerComes) {
  Pair of_two, of_many(1024);
  EXPECT_TRUE(of_two.asks(0));
  for (const int at : {320, 960, 1600, 2240, 2880}) of_two.expect_asked_next(at);
  EXPECT_TRUE(of_many.asks(0));
  for (const int at : {320, 960, 2240, 4800, 9920, 19'920, 29'920}) of_many.expect_asked_next(at);
}

TEST(QuestionPace, AnAnswerEndsTheLongPause) {
  Pair pair;
  EXPECT_TRUE(pair.asks(0));
  pair.expect_asked_next(320);
  pair.expect_asked_next(960);  // those before were lost
  pair.answered(960, 961);
  pair.expect_asked_next(970);
  pair.answered(970, 972);
  pair.expect_asked_next(980);
}

TEST(QuestionPace, ARankThatHasAnsweredIsAskedAgainSoonWhereAQuestionIsLost) {
  Pair pair;
  EXPECT_TRUE(pair.asks(0));
  pair.answered(0, 1);
  for (const int at : {10, 330, 970, 1610, 2250}) pair.expect_asked_next(at);
}

TEST(QuestionPace, TheNextQuestionWaitsForASlowAnswer) {
  Pair pair;
  EXPECT_TRUE(pair.asks(0));
  pair.answered(0, 20);
  pair.expect_asked_next(40);
  pair.answered(40, 3040);
  pair.expect_asked_next(3080);
  pair.expect_asked_next(9080);  // after twice 3 s it counts as lost
  pair.answered(3080, 9400);     // it was late
  pair.expect_asked_next(9080 + 2 * 6320);
}

TEST(QuestionPace, WhenTheTreeHasChangedWhatIsUnderWayMayBeLost) {
  Pair pair;
  EXPECT_TRUE(pair.asks(0));
  pair.answered(0, 3000);
  pair.expect_asked_next(3040);
  EXPECT_FALSE(pair.asks(4000));
  pair.pace.tree_changed();
  EXPECT_TRUE(pair.asks(4000));
  pair.answered(3040, 4001);
  pair.answered(4000, 4002);
  pair.expect_asked_next(4010);
}

// It came another way than those after it.
TEST(QuestionPace, AnOldAnswerAfterTheLatestSaysNothing) {
  Pair pair;
  EXPECT_TRUE(pair.asks(0));
  pair.expect_asked_next(320);
  pair.answered(320, 321);
  pair.answered(0, 322);
  pair.expect_asked_next(330);
}

TEST(QuestionPace, AnAnswerToNoQuestionSaysNothing) {
  Pair pair;
  pair.answered(-5, 0);
  EXPECT_TRUE(pair.asks(0));
  for (const Clock::time_point odd :
       {pair.begin - milliseconds(1), pair.begin + milliseconds(1), Clock::time_point(),
        Clock::time_point(milliseconds(-1)), Clock::time_point::min(), Clock::time_point::max()})
    pair.pace.answered(1, odd, pair.begin + milliseconds(2));
  for (const int at : {320, 960, 1600}) pair.expect_asked_next(at);
}

// All ranks of a job want to know of all others, and each question goes through one process, which has time for
// `a_second` of them after `prompt`, and for any number before; the answers come when it has. Questions to ranks below
// `slow_from` do not go through it.
struct BusyTree {
  uint32_t ranks, a_second;
  Clock::duration prompt{};
  uint32_t slow_from = 0;
  // How long questions waited, at most, in each tenth of the time.
  std::array<milliseconds, 10> waits(Clock::duration run_time) const {
    struct Waits {
      uint32_t asks, rank;
      Clock::time_point when;
    };
    std::vector<QuestionPace> paces(ranks, QuestionPace(ranks));
    std::deque<Waits> queue;
    std::array<milliseconds, 10> longest{};
    const Clock::time_point begin = Clock::now();
    const Clock::duration step = std::clamp<Clock::duration>(run_time / 2000, milliseconds(1), milliseconds(20));
    for (Clock::duration at{}, has_time_at{}; at < run_time; at += step) {
      const Clock::time_point now = begin + at;
      for (; !queue.empty() && has_time_at <= at; has_time_at += std::chrono::microseconds(1'000'000 / a_second)) {
        const Waits next = queue.front();
        queue.pop_front();
        milliseconds& most = longest[static_cast<size_t>(10 * at / run_time)];
        most = std::max(most, std::chrono::duration_cast<milliseconds>(now - next.when));
        paces[next.asks].answered(next.rank, next.when, now);
        if (at < prompt) has_time_at = {};
      }
      if (queue.empty() || at < prompt) has_time_at = at;
      for (uint32_t asks = 0; asks < ranks; ++asks) {
        for (uint32_t rank = 0; rank < ranks; ++rank)
          if (rank != asks) paces[asks].want(rank, now);
        while (const auto rank = paces[asks].next(now)) {
          if (*rank < slow_from)
            paces[asks].answered(*rank, now, now + milliseconds(1));
          else
            queue.push_back({asks, *rank, now});
        }
      }
    }
    return longest;
  }
};

// An introduction waits no longer than a question from each rank to each takes, and not longer and longer. It takes a while
// until the ranks know how slow the answers are.
TEST(QuestionPace, ABusyTreeIsNotAskedMoreThanItAnswers) {
  const auto prompt = milliseconds(2000);
  for (const BusyTree& tree :
       {BusyTree{9, 50}, BusyTree{9, 200}, BusyTree{9, 1000}, BusyTree{32, 200}, BusyTree{32, 1000},
        BusyTree{9, 50, prompt}, BusyTree{32, 200, prompt}, BusyTree{9, 5, {}, 6}, BusyTree{32, 200, {}, 8}}) {
    SCOPED_TRACE(testing::Message() << tree.ranks << " ranks, " << tree.a_second
                                    << " answers a second, at first prompt for " << seconds(tree.prompt)
                                    << " s, slow from rank " << tree.slow_from);
    const milliseconds each_once(1000 * (tree.ranks - tree.slow_from) * (tree.ranks - 1) / tree.a_second);
    const auto waits = tree.waits(20 * each_once);
    EXPECT_LE(*std::max_element(waits.begin(), waits.end()), 6 * each_once);
    for (size_t tenth = 5; tenth < 10; ++tenth) EXPECT_LE(waits[tenth], each_once) << tenth;
    EXPECT_GT(waits[9], each_once / 4) << "no rank asks any more";
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

// At most 400 a second of up to 64 ranks, however slow the tree is; few at a time.
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
    for (const uint32_t mute : {0u, 8u, 16u, ranks * 3 / 4}) {
      Waiting waiting{.ranks = ranks, .answer_ms = 20, .mute = std::min(mute, ranks * 3 / 4)};
      waiting.run(700);
      EXPECT_EQ(waiting.asked_before(600).size(), ranks - 1) << ranks << " ranks, " << mute << " mute";
    }
}

}  // namespace
}  // namespace treering
