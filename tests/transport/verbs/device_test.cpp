// SPDX-License-Identifier: Apache-2.0
// What a device is told, without one.
#include "transport/verbs/devices/device.h"

#include <gtest/gtest.h>

namespace treering::verbs {
namespace {

using std::chrono::milliseconds;

TEST(VerbsPath, TheRetryTimeIsAnEighthOfTheDeadlineAtMost) {
  for (const int seconds : {4, 5, 8, 10, 15, 20, 30, 40, 59}) {
    PathOptions path;
    path.timeout = PathOptions::timeout_for(milliseconds(seconds * 1000));
    EXPECT_LE(path.retry_seconds(), seconds / 8.0);
    ++path.timeout;
    EXPECT_GT(path.retry_seconds(), seconds / 8.0) << "one more would do, too";
  }
}

TEST(VerbsPath, TheRetryTimeHasLimits) {
  for (const int ms : {1, 100, 1'000, 3'700}) EXPECT_EQ(PathOptions::timeout_for(milliseconds(ms)), 14) << ms;
  for (const int ms : {0, 60'200, 300'000}) EXPECT_EQ(PathOptions::timeout_for(milliseconds(ms)), 18) << ms;
  PathOptions path;
  path.timeout = 18;
  EXPECT_NEAR(path.retry_seconds(), 7.52, 0.01);
  EXPECT_NEAR(path.survived_seconds(), 6.44, 0.01);
}

}  // namespace
}  // namespace treering::verbs
