// SPDX-License-Identifier: Apache-2.0
// Which notices are applied, in a process without neighbours.
#include "bootstrap/job/notice_flood.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bootstrap/job/trees.h"

namespace treering {
namespace {

using testing::tree_at;

struct Alone {
  JobContext context{.agent = nullptr, .id = {}, .hold = [] { return nullptr; }, .own = {}};
  ProcessTree tree = tree_at(0, {kNobody, kNobody});
  TreeConnections connections{context, tree, {}};
  std::vector<std::string> applied;
  NoticeFlood notices{context, tree, connections,
                      [this](const NoticeMessage& notice) { applied.push_back(notice.text); }};
};

TEST(NoticeFlood, NewsIsAppliedOnce) {
  Alone alone;
  const NoticeMessage loss{.origin = 1, .number = 1, .type = NoticeType::kLost, .process = 1, .text = "lost"};
  alone.notices.take(loss, 1);
  alone.notices.take(loss, kNobody);
  EXPECT_EQ(alone.applied, (std::vector<std::string>{"lost"}));
}

TEST(NoticeFlood, WhatThisProcessTellsCountsHereToo) {
  Alone alone;
  alone.notices.notify({.type = NoticeType::kVerdict, .text = "first"});
  alone.notices.notify({.type = NoticeType::kVerdict, .text = "second"});
  EXPECT_EQ(alone.applied, (std::vector<std::string>{"first"})) << "the first verdict counts";
  ASSERT_EQ(alone.notices.log().notices().size(), 2u);
  EXPECT_EQ(alone.notices.log().notices()[1].origin, 0u);
  EXPECT_EQ(alone.notices.log().notices()[1].number, 2u);
}

}  // namespace
}  // namespace treering
