// SPDX-License-Identifier: Apache-2.0
// Questions and introductions between ranks of one process, and what is dropped.
#include "bootstrap/job/ranks/rank_messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

using testing::tree_at;

// One process with ranks 0 and 1, without neighbours; rank 2 is elsewhere.
struct Process {
  Process() {
    context.phase = JobContext::Phase::kRunning;
    for (uint32_t rank : {0u, 1u}) {
      held.push_back(std::make_shared<Member>());
      held.back()->request.rank = rank;
      held.back()->has_events = true;
      held.back()->events.status = [rank] { return "status of " + std::to_string(rank); };
      held.back()->events.on_introduced = [this, rank](uint32_t source, const std::string& bytes, int fd) {
        EXPECT_EQ(fd, -1);
        introduced.push_back(std::to_string(source) + " to " + std::to_string(rank) + ": " + bytes);
      };
      members.add(held.back());
    }
  }

  JobContext context{.agent = nullptr, .id = {}, .hold = [] { return nullptr; }, .own = {}};
  ProcessTree tree = tree_at(0, {kNobody, kNobody}, {0, 0, 1});
  TreeConnections connections{context, tree, {}};
  Members members;
  std::vector<std::shared_ptr<Member>> held;
  std::vector<std::string> introduced;
  RankMessages messages{context, tree, connections, members};
};

TEST(RankMessages, ARankOfThisProcessAnswersAtOnce) {
  Process process;
  process.messages.ask(0, 1, Clock::now());
  ASSERT_EQ(process.held[0]->statuses.count(1), 1u);
  EXPECT_EQ(process.held[0]->statuses[1].bytes, "status of 1");
  EXPECT_TRUE(process.held[1]->statuses.empty());
}

TEST(RankMessages, AnAnswerSaysWhenItsQuestionWasAsked) {
  Process process;
  auto& questions = process.held[0]->questions.emplace(2);
  const Clock::time_point asked = Clock::now();
  questions.want(1, asked);
  ASSERT_EQ(questions.next(asked), 1u);
  process.messages.ask(0, 1, asked - std::chrono::milliseconds(1));
  EXPECT_FALSE(questions.is_answered(1));
  process.messages.ask(0, 1, asked);
  EXPECT_TRUE(questions.is_answered(1));
}

TEST(RankMessages, AnAnswerThatTookLongerDoesNotReplaceOneThatWasAskedLater) {
  Process process;
  const auto answers = [&](uint64_t asked, const std::string& bytes) {
    process.messages.take_answer(encode(AnswerMessage{2, 0, 0, asked, bytes}), kNobody);
    return process.held[0]->statuses[2].bytes;
  };
  EXPECT_EQ(answers(5, "asked at 5"), "asked at 5");
  EXPECT_EQ(answers(4, "asked at 4"), "asked at 5");
  EXPECT_EQ(answers(6, "asked at 6"), "asked at 6");
}

TEST(RankMessages, ARankThatDoesNotExistAnswersNothing) {
  Process process;
  process.messages.take_answer(encode(AnswerMessage{3, 0, 0, 5, "rank 3 of 3"}), kNobody);
  EXPECT_TRUE(process.held[0]->statuses.empty());
}

TEST(RankMessages, WhatCannotBeAnsweredIsDropped) {
  Process process;
  process.messages.ask(0, 2, Clock::now());
  process.messages.ask(0, 3, Clock::now());
  process.held[1]->events.status = nullptr;
  process.messages.ask(0, 1, Clock::now());
  process.messages.take_question("nonsense", kNobody);
  process.messages.take_answer("nonsense", kNobody);
  EXPECT_TRUE(process.held[0]->statuses.empty());
}

TEST(RankMessages, NothingIsAskedBeforeTheRanksHaveMet) {
  Process process;
  process.context.phase = JobContext::Phase::kRendezvous;
  process.messages.ask(0, 1, Clock::now());
  EXPECT_TRUE(process.held[0]->statuses.empty());
}

TEST(RankMessages, AnIntroductionReachesItsRank) {
  Process process;
  process.messages.take_introduction(encode(IntroductionMessage{2, 1, "tcp"}), kNobody);
  process.messages.take_introduction(encode(IntroductionMessage{0, 2, "tcp"}), kNobody);
  process.messages.take_introduction(encode(IntroductionMessage{3, 1, "tcp"}), kNobody);
  EXPECT_EQ(process.introduced, (std::vector<std::string>{"2 to 1: tcp"}));
}

}  // namespace
}  // namespace treering
