// SPDX-License-Identifier: Apache-2.0
// UndefinedBehaviorSanitizer in a process that has no descriptors left: it reports what is wrong, and nothing else.
#include "support/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "support/descriptor_limit_objects.h"

namespace treering::testing {
namespace {

void leave(size_t count) {
  if (!leave_descriptors(count)) _exit(3);
}

TEST(DescriptorLimit, LeavesSoMany) {
  leave(1);
  const int one = dup(0), two = dup(0);
  EXPECT_GE(one, 0);
  EXPECT_LT(two, 0);
  allow_descriptors();
  const int three = dup(0);
  EXPECT_GE(three, 0);
  for (int fd : {one, three}) close(fd);
}

// How a process ends in which a sanitizer found an error: with 1 by default, with 66 in tests/run.
bool found_an_error(int status) { return WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 66); }

// Each in a child, which has checked no object yet.
TEST(DescriptorLimitDeathTest, ARightObjectIsNoError) {
  for (size_t count : {0, 1, 2, 3}) {
    SCOPED_TRACE(count);
    EXPECT_EXIT((leave(count), _exit(call_right_object())), ::testing::ExitedWithCode(2), "^$");
  }
  EXPECT_EXIT((leave(0), call_right_object(), allow_descriptors(), _exit(call_right_object())),
              ::testing::ExitedWithCode(2), "^$");
}

TEST(DescriptorLimitDeathTest, AWrongObjectIsOneWhileThereAreDescriptors) {
  const char* report = "runtime error: member call on .* does not point to an object of type 'Base'";
  EXPECT_EXIT(_exit(call_wrong_object()), found_an_error, report);
  EXPECT_EXIT((leave(0), call_wrong_object(), allow_descriptors(), _exit(call_wrong_object())), found_an_error, report);
}

TEST(DescriptorLimitDeathTest, OtherErrorsAreFatalWithoutDescriptors) {
  EXPECT_EXIT((leave(0), _exit(overflow())), found_an_error, "signed integer overflow");
}

}  // namespace
}  // namespace treering::testing
