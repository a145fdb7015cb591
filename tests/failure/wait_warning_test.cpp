// SPDX-License-Identifier: Apache-2.0
// When a rank says for whom it waits, with made-up times.
#include "failure/wait_warning.h"

#include <gtest/gtest.h>

#include <vector>

namespace treering {
namespace {

using std::chrono::seconds;

TEST(WaitWarning, ComesAfterEachDoubling) {
  WaitWarning warning(seconds(10));
  for (int operation = 0; operation < 2; ++operation) {
    warning.begin();
    std::vector<int> warned;
    for (int waited = 0; waited < 100; ++waited)
      if (warning.is_due(seconds(waited))) warned.push_back(waited);
    EXPECT_EQ(warned, (std::vector<int>{10, 20, 40, 80}));
  }
}

// Not one for each time that passed unseen.
TEST(WaitWarning, ComesOnceAfterALongTime) {
  WaitWarning warning(seconds(10));
  EXPECT_TRUE(warning.is_due(seconds(75)));
  EXPECT_FALSE(warning.is_due(seconds(79)));
  EXPECT_TRUE(warning.is_due(seconds(80)));
}

TEST(WaitWarning, MayBeSwitchedOff) {
  WaitWarning warning(seconds(0));
  EXPECT_FALSE(warning.is_due(seconds(100'000)));
}

}  // namespace
}  // namespace treering
