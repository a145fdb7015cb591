// SPDX-License-Identifier: Apache-2.0
// What arrives at the top, and what ends the wait for an exchange: in a process without neighbours, so without sockets.
#include "bootstrap/job/exchanger.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

using testing::kNow;
using testing::tree_at;

// Process 0, the top, holds ranks 0 and 1; process 1 is not connected, and holds rank 2.
struct Top {
  Top() {
    context.phase = JobContext::Phase::kRunning;
    tree.remove(1);
    for (uint32_t rank : {0u, 1u}) {
      held.push_back(std::make_shared<Member>());
      held.back()->request.rank = rank;
      members.add(held.back());
    }
  }

  Status failure_of(uint32_t rank) const { return held[rank]->failure; }
  void learn(NoticeType type, const NoticeMessage& notice) {
    NoticeMessage numbered = notice;
    numbered.type = type;
    numbered.origin = 1;
    numbered.number = ++number;
    (void)notices.take(numbered, kNow);
  }

  JobContext context{.agent = nullptr, .id = {}, .hold = [] { return nullptr; }, .own = {}};
  ProcessTree tree = tree_at(0, {kNobody, 0}, {0, 0, 1});
  FailureDetector detector{tree};
  Members members;
  NoticeLog notices;
  std::vector<std::shared_ptr<Member>> held;
  std::vector<std::string> hellos, verdicts, failures;
  uint64_t number = 0;
  TreeConnections connections{context, tree, {}};
  Rendezvous rendezvous{context, tree, connections, members, {}};
  Exchanger exchanger{context,
                      tree,
                      detector,
                      connections,
                      members,
                      notices,
                      rendezvous,
                      {.hello = [this](const HelloMessage& hello) { hellos.push_back(hello.settings); },
                       .verdict = [this](const SpreadMessage& verdict) { verdicts.push_back(verdict.text); },
                       .failed = [this](const Status& status) { failures.push_back(status.message()); }}};
};

TEST(Exchanger, ARoundEndsWithTheBlobsOfAllRanks) {
  Top top;
  top.exchanger.give_blob(0, 1, "a");
  top.exchanger.up(Kind::kBlob, encode(BlobMessage{2, 1, "c"}));
  EXPECT_EQ(top.held[0]->answered, 0u);
  top.exchanger.give_blob(1, 1, "b");
  for (const auto& member : top.held) {
    EXPECT_EQ(member->answered, 1u);
    ASSERT_TRUE(member->answer);
    EXPECT_EQ(*member->answer, (std::vector<std::string>{"a", "b", "c"}));
  }
  EXPECT_EQ(top.exchanger.round(), 1u);
}

TEST(Exchanger, HellosAndVerdictsAreHandedOnAtTheTop) {
  Top top;
  HelloMessage hello;
  hello.settings = "x";
  top.exchanger.up(Kind::kHello, encode(hello));
  top.exchanger.up(Kind::kSpread, encode(SpreadMessage{1, "first"}));
  EXPECT_EQ(top.hellos, (std::vector<std::string>{"x"}));
  top.learn(NoticeType::kVerdict, {.code = 1, .text = "first"});
  top.exchanger.up(Kind::kSpread, encode(SpreadMessage{1, "second"}));
  EXPECT_EQ(top.verdicts, (std::vector<std::string>{"first"}));
}

TEST(Exchanger, WhatIsSentBelowWaitsForATop) {
  Top below;
  below.tree.attach_to(1);
  below.tree.remove(1);
  below.exchanger.give_blob(0, 1, "a");
  below.exchanger.give_blob(1, 1, "b");
  below.tree.become_top();
  below.exchanger.become_top();
  below.exchanger.up(Kind::kBlob, encode(BlobMessage{2, 1, "c"}));
  EXPECT_EQ(below.held[0]->answered, 1u);
}

TEST(Exchanger, AVerdictEndsTheWait) {
  Top top;
  top.exchanger.give_blob(0, 1, "a");
  top.learn(NoticeType::kVerdict, {.code = trRemoteError, .text = "first"});
  top.exchanger.take_verdict();
  EXPECT_EQ(top.failure_of(0).message(), "first");
  EXPECT_TRUE(top.failures.empty()) << "the job goes on";
}

TEST(Exchanger, ALossEndsTheWaitOfThoseThatWait) {
  Top top;
  const NoticeMessage loss{.type = NoticeType::kLost, .process = 1, .text = "it has ended"};
  EXPECT_FALSE(top.exchanger.take_loss(loss)) << "no rank waits";
  top.exchanger.give_blob(0, 1, "a");
  EXPECT_TRUE(top.exchanger.take_loss(loss));
  EXPECT_EQ(top.failure_of(0).message(), "rank 2 (pid 1001 on a): it has ended");
  EXPECT_TRUE(top.exchanger.deadline_passed().ok()) << "the exchange has ended";
}

TEST(Exchanger, ABlobAfterALossFails) {
  Top top;
  top.learn(NoticeType::kLost, {.process = 1, .text = "it has ended"});
  top.exchanger.give_blob(0, 1, "a");
  EXPECT_EQ(top.failure_of(0).message(), "rank 2 (pid 1001 on a): it has ended");
}

TEST(Exchanger, TheDeadlineNamesThoseWhosePartIsMissing) {
  Top top;
  EXPECT_TRUE(top.exchanger.deadline_passed().ok());
  top.exchanger.give_blob(0, 1, "a");
  const Status status = top.exchanger.deadline_passed();
  EXPECT_EQ(status.code(), trTimeout);
  EXPECT_NE(status.message().find("missing: rank 1 (pid 1000 on a), rank 2 (pid 1001 on a) of 3 ranks"),
            std::string::npos)
      << status.message();
  top.exchanger.hand_over();
  top.tree.attach_to(1);
  EXPECT_TRUE(top.exchanger.deadline_passed().ok()) << "the one above has it";
}

}  // namespace
}  // namespace treering
