// SPDX-License-Identifier: Apache-2.0
// The thread of the control connections where descriptors are short: it cannot be started, or accepts no connection.
#include "bootstrap/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bootstrap/jobs.h"
#include "core/log.h"
#include "support/descriptor_limit.h"
#include "support/log_file.h"
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

// The communicator is there: it goes on, as those who connect may not have its secret. They could only say that they
// wait.
TEST(Agent, SaysInTheLogWhyConnectionsOfOthersWait) {
  const LogFile log;
  RankProcesses processes(2, [&log](int rank, const trUniqueId& packed) {
    if (rank == 1) log.take();
    std::unique_ptr<Membership> membership;
    JOB_CHECK(Membership::join(unpacked(packed), request_of(static_cast<uint32_t>(rank), 2), &membership));
    membership->set_events({});
    Membership::Blobs all;
    JOB_CHECK(membership->allgather("x", &all));
    membership->end_creation();
    if (rank == 1) {
      log_line(LogLevel::kWarn, "opens the log");
      JOB_EXPECT(leave_descriptors(0));
    }
    JOB_CHECK(membership->allgather("x", &all));  // rank 1 has none left
    if (rank == 0) membership->introduce(1, {.bytes = "0", .connects = true});
    reached();
    pause();
    return 0;
  });
  for (int rank : {0, 1}) ASSERT_TRUE(processes.wait_until_reached(rank));
  const char* const words =
      "connections to this process wait: no file descriptor is left for a connection (its limit is ";
  EXPECT_TRUE(soon([&] { return log.text().find(words) != std::string::npos; })) << log.text();
}

}  // namespace
}  // namespace treering::testing
