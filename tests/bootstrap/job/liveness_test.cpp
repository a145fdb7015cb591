// SPDX-License-Identifier: Apache-2.0
// What the members of a process know of silent ranks, and what a process says of itself: without connections and ticks.
#include "bootstrap/job/liveness.h"

#include <gtest/gtest.h>

#include <vector>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

using testing::tree_at;

// Process 1 below the root, with a child; it has heard of their places, and has no connection.
struct Below {
  Below() {
    context.phase = JobContext::Phase::kRunning;
    members.add(member);
  }

  std::shared_ptr<Member> member = std::make_shared<Member>();
  JobContext context{.agent = nullptr, .id = {}, .hold = [] { return nullptr; }, .own = {}};
  ProcessTree tree = tree_at(1, {kNobody, 0, 1}, {1, 2});  // process 0 holds no rank
  FailureDetector detector{tree};
  Members members;
  std::vector<NoticeMessage> notices;
  TreeConnections connections{context, tree, {}};
  Liveness liveness{context,  tree,
                    detector, connections,
                    members,  {.notify = [this](const NoticeMessage& notice) { notices.push_back(notice); }}};
};

NoticeMessage silence_of(uint32_t process) {
  return {.type = NoticeType::kSilent, .process = process, .text = "its process does not answer"};
}

TEST(Liveness, MembersKnowWhoIsSilentUntilItIsHeardMovesOrIsLost) {
  Below below;
  const auto ends = {+[](Liveness& liveness) { liveness.take_heard(2); },
                     +[](Liveness& liveness) { liveness.take_move(2); },
                     +[](Liveness& liveness) { EXPECT_TRUE(liveness.take_loss(2)); }};
  for (const auto end : ends) {
    below.liveness.take_silence(silence_of(2));
    ASSERT_EQ(below.member->silent.size(), 1u);
    EXPECT_EQ(below.member->silent[0].ranks, (std::vector<uint32_t>{1}));
    end(below.liveness);
    EXPECT_TRUE(below.member->silent.empty());
  }
  EXPECT_FALSE(below.liveness.take_loss(2)) << "it is known";
  EXPECT_TRUE(below.notices.empty()) << "others have told of it";
}

TEST(Liveness, MembersKnowThatTheRelayAboveIsSilent) {
  Below below;
  below.liveness.take_silence(silence_of(0));
  EXPECT_TRUE(below.member->silent.empty()) << "it holds no rank";
  ASSERT_TRUE(below.member->silent_relay);
  below.tree.attach_to(2);
  below.liveness.publish_silence();
  EXPECT_FALSE(below.member->silent_relay) << "another one is above";
}

TEST(Liveness, AProcessThatIsToldOfItsOwnSilenceSaysThatItIsThere) {
  Below below;
  below.liveness.take_silence(silence_of(1));
  ASSERT_EQ(below.notices.size(), 1u);
  EXPECT_EQ(below.notices[0].type, NoticeType::kHeard);
  EXPECT_EQ(below.notices[0].process, 1u);
}

TEST(Liveness, OnlyOneThatWasSilentIsHeardAgain) {
  Below below;
  below.liveness.report_heard(2);
  EXPECT_TRUE(below.notices.empty());
  below.liveness.take_silence(silence_of(2));
  below.liveness.report_heard(2);
  ASSERT_EQ(below.notices.size(), 1u);
  EXPECT_EQ(below.notices[0].type, NoticeType::kHeard);
}

}  // namespace
}  // namespace treering
