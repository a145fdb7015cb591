// SPDX-License-Identifier: Apache-2.0
// Tests of what is true at a deadline, on a machine that may leave a process without a processor for longer than that.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>

#include "support/processes.h"

namespace treering::testing {

constexpr int kAttempts = 3;
// How the process of an attempt ends. Any other end fails the test: a crash, also of a rank, an exception, what a sanitizer found.
enum AttemptEnd { kHolds = 0, kCrashed = 1, kFails = 41, kSkips = 77 };

inline int end_of_attempt(const std::function<void()>& body) {
  (void)any_rank_crashed();  // of tests before
  try {
    body();
  } catch (const std::exception& error) {
    std::printf("exception: %s\n", error.what());
    return kCrashed;
  }
  if (any_rank_crashed()) return kCrashed;
  if (::testing::Test::IsSkipped()) return kSkips;
  return ::testing::Test::HasFailure() ? kFails : kHolds;
}

// Runs `body` until none of its expectations fails, three times at most; the first two in processes of their own, so that what
// fails there is printed and does not count. tests/run lists the attempts that failed at its end.
inline void in_three_attempts(const std::function<void()>& body) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const pid_t parent = getpid();
  for (int attempt = 1; attempt < kAttempts; ++attempt) {
    std::fflush(nullptr);
    const pid_t child = fork_when_quiet();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kCrashed);
      const int end = end_of_attempt(body);
      std::fflush(nullptr);
      _exit(end);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const int end = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (end == kHolds) return;
    if (end == kSkips) break;
    ASSERT_EQ(end, kFails) << "attempt " << attempt << " is the last: it crashed, or one of its ranks did";
    std::printf("attempt %d of %d failed: %s.%s\n", attempt, kAttempts, test->test_suite_name(), test->name());
    std::fflush(nullptr);
  }
  body();
}

}  // namespace treering::testing

// TEST and TEST_P in three attempts. The body of a TEST_P may use GetParam(), and no other member.
#define TEST_IN_THREE_ATTEMPTS(suite, name)                                               \
  static void body_of_##suite##_##name();                                                 \
  TEST(suite, name) { ::treering::testing::in_three_attempts(body_of_##suite##_##name); } \
  static void body_of_##suite##_##name()

#define TEST_P_IN_THREE_ATTEMPTS(suite, name)                                                   \
  struct BodyOf_##suite##_##name : suite {                                                      \
    static void run();                                                                          \
  };                                                                                            \
  TEST_P(suite, name) { ::treering::testing::in_three_attempts(BodyOf_##suite##_##name::run); } \
  void BodyOf_##suite##_##name::run()
