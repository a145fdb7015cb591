// SPDX-License-Identifier: Apache-2.0
// The thread of the control connections where descriptors are short: it cannot be started, or accepts no connection.
#include "bootstrap/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "bootstrap/jobs.h"
#include "core/log.h"
#include "support/descriptor_limit.h"
#include "support/log_file.h"
#include "support/processes.h"
#include "treering/treering.h"

namespace {
thread_local bool has_no_memory = false;
}  // namespace

// That of the library, too.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (void* memory = has_no_memory ? nullptr : std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t& /*nothrow*/) noexcept {
  return has_no_memory ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

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

Agent& started_agent() {
  trUniqueId id;
  EXPECT_EQ(trGetUniqueId(&id), trSuccess);
  return Agent::instance();
}

// The destructors that end a creation for want of memory call, too.
TEST(Agent, ACallTakesNoMemory) {
  Agent& agent = started_agent();
  bool ran = false;
  const Agent::Task task = [&ran] { ran = true; };
  has_no_memory = true;
  const Status called = agent.call(task);
  has_no_memory = false;
  EXPECT_TRUE(called.ok() && ran);
}

TEST(Agent, WhatAThreadPostsRunsBeforeWhatItCallsThen) {
  Agent& agent = started_agent();
  constexpr int kThreads = 6, kTurns = 500;
  int posted[kThreads] = {}, called[kThreads] = {}, wrong = 0;  // of the agent's thread, until the others have ended
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int turn = 1; turn <= kTurns; ++turn) {
        agent.post([&, t] { ++posted[t]; });
        (void)agent.call([&, t, turn] { wrong += posted[t] != turn || ++called[t] != turn; });
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (int turns : called) EXPECT_EQ(turns, kTurns);
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
