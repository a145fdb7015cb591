// SPDX-License-Identifier: Apache-2.0
// Operations that a user made: found by their value until they are removed, and by no other value.
#include "communicator/calls/reductions.h"

#include <gtest/gtest.h>

#include <set>

namespace treering {
namespace {

TEST(Reductions, AreFoundUntilTheyAreRemoved) {
  Reductions reductions;
  const auto made = std::make_shared<const Reduction>();
  const trRedOp_t op = reductions.add(made);
  EXPECT_GE(op, trRedOpFirstCreated);
  std::shared_ptr<const Reduction> found;
  ASSERT_TRUE(reductions.find(op, &found).ok());
  EXPECT_EQ(found, made);
  EXPECT_TRUE(reductions.remove(op).ok());
  for (const Status& status : {reductions.find(op, &found), reductions.remove(op)}) {
    EXPECT_EQ(status.code(), trInvalidArgument);
    EXPECT_NE(status.message().find("was not made on this communicator, or was destroyed"), std::string::npos)
        << status.message();
  }
}

TEST(Reductions, NoOtherCommunicatorsHasTheSameValue) {
  Reductions one, other;
  std::set<trRedOp_t> values;
  for (int i = 0; i < 10; ++i)
    for (Reductions* reductions : {&one, &other}) values.insert(reductions->add(std::make_shared<const Reduction>()));
  EXPECT_EQ(values.size(), 20u);
  std::shared_ptr<const Reduction> found;
  const trRedOp_t of_other = other.add(std::make_shared<const Reduction>());
  EXPECT_FALSE(one.find(of_other, &found).ok());
  EXPECT_FALSE(one.remove(of_other).ok());
}

}  // namespace
}  // namespace treering
