// SPDX-License-Identifier: Apache-2.0
// The thread of the control connections where it cannot be started.
#include "bootstrap/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/descriptor_limit.h"
#include "support/processes.h"
#include "treering/treering.h"

namespace treering::testing {
namespace {

int count_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

// The number of the check that failed, or 0.
int ask_for_ids_without_descriptors() {
  const int before = count_descriptors();
  if (!leave_descriptors(2)) return 1;  // for its epoll, but not for its pipe
  const int limited = count_descriptors();
  for (int i = 0; i < 5; ++i) {
    trUniqueId id;
    if (trGetUniqueId(&id) != trSystemError) return 2;
    if (count_descriptors() != limited) return 3;
  }
  allow_descriptors();
  trUniqueId id;
  if (trGetUniqueId(&id) != trSuccess) return 4;
  return count_descriptors() > before ? 0 : 5;
}

TEST(Agent, KeepsNoDescriptorWhereItCannotStartAndStartsOnceItCan) {
  const pid_t child = fork_when_quiet();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(ask_for_ids_without_descriptors());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace treering::testing
