// SPDX-License-Identifier: Apache-2.0
#include "support/attempts.h"

#include <stdexcept>
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

// How a test with such a body ends, in a process of its own.
int end_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStdout();
  const pid_t child = fork_when_quiet();
  if (child == 0) _exit(end_of_attempt([&] { in_three_attempts(body); }));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

TEST(InThreeAttempts, TheLastOneCounts) {
  const SharedNumber made;
  EXPECT_EQ(end_of([&] { EXPECT_EQ(++*made, 4); }), kFails);
  EXPECT_EQ(*made, 3);
}

// `crash` in the process of the test, and in that of a rank.
void expect_no_other_attempt(const std::function<void()>& crash) {
  for (const bool of_rank : {false, true}) {
    const SharedNumber made;
    const int how = end_of([&] {
      ++*made;
      if (!of_rank) return crash();
      RankProcesses ranks(1, [&](int, const trUniqueId&) {
        crash();
        return 0;
      });
      EXPECT_EQ(ranks.wait(0).exit_code, 0);
    });
    EXPECT_NE(how, kHolds);
    EXPECT_EQ(*made, 1) << of_rank;
  }
}

TEST(InThreeAttempts, OneThatCrashesIsTheLast) {
  expect_no_other_attempt([] { raise(SIGSEGV); });
}

TEST(InThreeAttempts, OneThatASanitizerEndsIsTheLast) {
  expect_no_other_attempt([] { _exit(66); });
}

TEST(InThreeAttempts, OneThatThrowsIsTheLast) {
  const SharedNumber made;
  EXPECT_EQ(end_of([&] {
              ++*made;
              throw std::runtime_error("as it should");
            }),
            kFails);
  EXPECT_EQ(*made, 1);
}

TEST(InThreeAttempts, OneThatIsSkippedIsSkipped) {
  EXPECT_EQ(end_of([] { GTEST_SKIP() << "as it should"; }), kSkips);
}

class InThreeAttemptsEach : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Numbers, InThreeAttemptsEach, ::testing::Values(7));

TEST_P_IN_THREE_ATTEMPTS(InThreeAttemptsEach, HasItsParameter) { EXPECT_EQ(GetParam(), 7); }

}  // namespace
}  // namespace treering::testing
