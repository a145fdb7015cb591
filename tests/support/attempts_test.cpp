// SPDX-License-Identifier: Apache-2.0
#include "support/attempts.h"

#include <string>

#include "support/waiting.h"

namespace treering::testing {
namespace {

// What `body` prints when it is made so: tests/run would take it for attempts of this test.
std::string printed_by(const std::function<void()>& body) {
  ::testing::internal::CaptureStdout();
  in_three_attempts(body);
  return ::testing::internal::GetCapturedStdout();
}

TEST(InThreeAttempts, OneThatSucceedsIsEnough) {
  const SharedNumber made;
  EXPECT_EQ(printed_by([&] { ++*made; }), "");
  EXPECT_EQ(*made, 1);
}

TEST(InThreeAttempts, WhatFailsIsPrintedAndDoneAgain) {
  const SharedNumber made;
  const std::string text = printed_by([&] { EXPECT_EQ(++*made, 2) << "too early"; });
  EXPECT_EQ(*made, 2);
  EXPECT_NE(text.find("too early"), std::string::npos) << text;
  EXPECT_NE(text.find("attempt 1 of 3 failed: InThreeAttempts.WhatFailsIsPrintedAndDoneAgain\n"), std::string::npos)
      << text;
}

TEST(InThreeAttempts, TheLastOneCounts) {
  const SharedNumber made;
  ::testing::internal::CaptureStdout();
  const pid_t child = fork_when_quiet();
  if (child == 0) {
    in_three_attempts([&] { EXPECT_EQ(++*made, 4); });
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_EQ(*made, 3);
}

TEST(InThreeAttempts, OneThatEndsItsProcessHasFailed) {
  const SharedNumber made;
  const std::string text = printed_by([&] {
    if (++*made == 1) abort();
  });
  EXPECT_EQ(*made, 2);
  EXPECT_NE(text.find("attempt 1 of 3 failed: "), std::string::npos) << text;
}

}  // namespace
}  // namespace treering::testing
