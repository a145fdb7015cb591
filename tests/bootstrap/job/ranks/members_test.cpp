// SPDX-License-Identifier: Apache-2.0
// What the ranks of a process are told, and which of them have left.
#include "bootstrap/job/ranks/members.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace treering {
namespace {

std::shared_ptr<Member> member_of(uint32_t rank) {
  auto member = std::make_shared<Member>();
  member->request.rank = rank;
  return member;
}

void listen(Member* member, std::vector<uint32_t>* lost) {
  member->has_events = true;
  member->events.on_lost = [lost](const std::vector<uint32_t>& ranks, const std::string&) {
    lost->insert(lost->end(), ranks.begin(), ranks.end());
  };
}

void tell_loss(const Members& members, uint32_t rank) {
  members.tell([rank](const MemberEvents& events) {
    if (events.on_lost) events.on_lost({rank}, "it is lost");
  });
}

TEST(Members, OneThatLeavesGetsNoMoreEvents) {
  Members members;
  const auto stays = member_of(1), leaves = member_of(2);
  members.add(stays);
  members.add(leaves);
  std::vector<uint32_t> told_stays, told_leaves;
  listen(stays.get(), &told_stays);
  listen(leaves.get(), &told_leaves);
  tell_loss(members, 7);
  EXPECT_TRUE(members.leave(2));
  EXPECT_FALSE(members.leave(2));
  tell_loss(members, 8);
  EXPECT_EQ(told_stays, (std::vector<uint32_t>{7, 8}));
  EXPECT_EQ(told_leaves, (std::vector<uint32_t>{7}));
  EXPECT_TRUE(members.has_left(2));
  EXPECT_FALSE(members.all_have_left());
  EXPECT_TRUE(members.leave(1));
  EXPECT_TRUE(members.all_have_left());
}

TEST(Members, EventsWaitForOneThatHasSetNone) {
  Members members;
  const auto member = member_of(1);
  members.add(member);
  tell_loss(members, 7);
  ASSERT_EQ(member->waiting.size(), 1u);
  EXPECT_TRUE(members.leave(1));
  EXPECT_TRUE(member->waiting.empty()) << "they are dropped";
}

TEST(Members, QuestionsAreAskedAgainWhenTheTreeHasChanged) {
  Members members;
  const auto asks = member_of(1), asks_none = member_of(2);
  members.add(asks);
  members.add(asks_none);
  auto& questions = asks->questions.emplace(100);
  Clock::time_point now = Clock::now();
  const auto asks_again_after = [&](int ms) {
    now += std::chrono::milliseconds(ms);
    questions.want(3, now);
    return questions.next(now).has_value();
  };
  for (const int ms : {0, 320, 640}) EXPECT_TRUE(asks_again_after(ms));
  EXPECT_FALSE(asks_again_after(320));
  members.tree_changed();
  EXPECT_TRUE(asks_again_after(0));
  EXPECT_FALSE(asks_none->questions.has_value());
}

TEST(Members, TheFirstFailureStays) {
  Members members;
  const auto member = member_of(1);
  members.add(member);
  members.fail({trTimeout, "first"});
  members.fail({trRemoteError, "second"});
  EXPECT_EQ(member->failure.message(), "first");
}

TEST(Members, ARankThatWasGivenTwiceIsFoundOnceAndToldTwice) {
  Members members;
  const auto first = member_of(1), second = member_of(1);
  members.add(first);
  members.add(second);
  EXPECT_EQ(members.find(1), first);
  EXPECT_EQ(members.find(2), nullptr);
  members.fail({trInvalidUsage, "given twice"});
  EXPECT_FALSE(first->failure.ok());
  EXPECT_FALSE(second->failure.ok());
}

TEST(Members, APauseOfTheAgentIsKept) {
  Members members;
  const auto member = member_of(1);
  members.add(member);
  const Clock::time_point now = Clock::time_point() + std::chrono::seconds(100);
  members.ticks(now);
  EXPECT_EQ(member->ticked, now);
  const OwnPause pause{std::chrono::seconds(2), now};
  members.ends_tick(&pause);
  EXPECT_FALSE(member->ticked);
  members.ends_tick(nullptr);
  EXPECT_EQ(member->own_pause.length, std::chrono::seconds(2));
}

}  // namespace
}  // namespace treering
