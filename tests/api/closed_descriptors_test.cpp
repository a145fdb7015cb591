// SPDX-License-Identifier: Apache-2.0
// A program that closes all descriptors that it does not know, as daemons do: nothing hangs, what then gets their
// numbers is left alone, and new communicators work.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

#if defined(__SANITIZE_THREAD__)
// The kernel gives the numbers out again while the library's thread may still ask about them, to find out.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:treering::Agent::loop\nrace:treering::Agent::stands\n";
}
#endif

namespace treering::testing {
namespace {

// A child whose body must return 0 within a minute, far less than any deadline of the library.
void expect_child(const std::function<int()>& body) {
  const pid_t child = fork_when_quiet();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "it hung: signal " << WTERMSIG(status);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 0, 0) << "the number of the check";
}

// By the system call itself: ThreadSanitizer would take it for a race with the library's thread, which it is meant to
// be.
void close_all() {
  for (int fd = 3; fd < 1024; ++fd) syscall(SYS_close, fd);
}

// The library's thread looks for its descriptors and then writes: where they are closed and given out again in between, it
// writes into what has their numbers. So that it does not, it is to have nothing to do.
bool agent_falls_asleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name == "treering-agent") return falls_asleep(std::stoi(task.path().filename()));
  }
  return false;
}

// Takes the lowest numbers: pipes, eventfds and epolls, as the library has them.
class ForeignFiles {
 public:
  ForeignFiles() {
    for (int i = 0; i < 12; ++i) {
      int ends[2];
      if (pipe2(ends, O_NONBLOCK) != 0) _exit(90);
      pipes_[ends[0]] = inode(ends[0]);
      pipes_[ends[1]] = inode(ends[1]);
      events_.push_back(eventfd(0, EFD_NONBLOCK));
    }
  }
  bool untouched() const {
    for (const auto& [fd, number] : pipes_) {
      char byte;
      if (inode(fd) != number) return false;
      if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY && read(fd, &byte, 1) >= 0) return false;
    }
    uint64_t count;
    for (int fd : events_)
      if (read(fd, &count, sizeof count) >= 0 || errno != EAGAIN) return false;
    return true;
  }

 private:
  static ino_t inode(int fd) {
    struct stat file {};
    return fstat(fd, &file) == 0 ? file.st_ino : 0;
  }
  std::map<int, ino_t> pipes_;
  std::vector<int> events_;
};

// Both ranks in this thread.
trResult_t sum_of_both(trComm_t* comms) {
  int values[2] = {1, 2};
  trGroupStart();
  for (int i = 0; i < 2; ++i) trAllReduce(&values[i], &values[i], 1, trInt32, trSum, comms[i], nullptr);
  const trResult_t result = trGroupEnd();
  return result == trSuccess && (values[0] != 3 || values[1] != 3) ? trInternalError : result;
}

TEST(ClosedDescriptors, NewCommunicatorsWork) {
  for (const bool reused : {false, true})
    expect_child([reused] {
      trComm_t before[2], copies[2], after[2];
      if (trCommInitAll(before, 2) != trSuccess || !agent_falls_asleep()) return 1;
      close_all();
      std::optional<ForeignFiles> foreign;
      if (reused) foreign.emplace();
      trUniqueId id;
      if (trGetUniqueId(&id) != trSuccess) return 2;
      if (sum_of_both(before) != trSuccess) return 3;  // through memory, as before
      trGroupStart();
      for (int i = 0; i < 2; ++i) trCommDup(before[i], &copies[i]);
      if (trGroupEnd() != trSuccess) return 4;
      if (sum_of_both(copies) != trSuccess) return 5;
      if (trCommInitAll(after, 2) != trSuccess || sum_of_both(after) != trSuccess) return 6;
      for (trComm_t* comms : {before, copies, after})
        for (int i = 0; i < 2; ++i)
          if (trCommDestroy(comms[i]) != trSuccess) return 7;
      return foreign && !foreign->untouched() ? 8 : 0;
    });
}

// Also when it was the old thread that noticed, as it had something to do.
TEST(ClosedDescriptors, AgainAndAgain) {
  expect_child([] {
    for (int i = 0; i < 5; ++i) {
      trComm_t comms[2];
      trUniqueId unused;
      if (trCommInitAll(comms, 2) != trSuccess || sum_of_both(comms) != trSuccess) return 1;
      if (i % 2 == 0 && trGetUniqueId(&unused) != trSuccess) return 2;  // its deadline is a timer of the thread
      close_all();
      for (trComm_t comm : comms)
        if (trCommDestroy(comm) != trSuccess) return 3;
    }
    return 0;
  });
}

// A rank that waits for another one, with and without a deadline.
TEST(ClosedDescriptors, EndWhatWaits) {
  for (const int timeout_ms : {300'000, 0})
    expect_child([timeout_ms] {
      trConfig_t config = config_with_timeout(timeout_ms);
      trUniqueId id;
      trComm_t comm;
      if (trGetUniqueId(&id) != trSuccess) return 1;
      std::atomic<bool> closed{false};
      int found = 0;
      std::atomic<pid_t> waiting{0};
      std::thread waiter([&] {
        waiting = gettid();
        const trResult_t result = trCommInitRankConfig(&comm, 2, id, 0, &config);
        const bool says = std::string(trGetLastError(nullptr)).find("closed descriptors") != std::string::npos;
        if (!closed)
          found = 2;
        else if (result != trSystemError)
          found = 3;
        else
          found = says ? 0 : 4;
      });
      if (!falls_asleep(waiting)) return 5;
      closed = true;
      close_all();
      waiter.join();
      return found;
    });
}

// Between processes, each of which has closed its own.
TEST(ClosedDescriptors, BetweenProcesses) {
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    trComm_t comm, copy;
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    close_all();
    alarm(60);
    int sum = 1;
    if (trCommDup(comm, &copy) != trSuccess) return 1;
    if (trAllReduce(&sum, &sum, 1, trInt32, trSum, copy, nullptr) != trSuccess || sum != 3) return 2;
    if (trCommDestroy(copy) != trSuccess || trCommDestroy(comm) != trSuccess) return 3;
    return 0;
  });
  for (int rank = 0; rank < 3; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ", signal " << result.signal;
  }
}

// Calls look for their descriptors once a tick of the kernel's clock.
void await_ticks() {
  const auto coarse = [] {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  };
  for (int tick = 0; tick < 2; ++tick)
    for (const auto before = coarse(); coarse() == before;) std::this_thread::yield();
}

// Streams write to their descriptors, and close them at the end: what has their numbers by now is left alone.
TEST(ClosedDescriptors, LinksUseThemNoMore) {
  expect_child([] {
    setenv("TREERING_TRANSPORTS", "tcp", 1);
    trComm_t comms[2];
    if (trCommInitAll(comms, 2) != trSuccess || sum_of_both(comms) != trSuccess) return 1;
    if (!agent_falls_asleep()) return 9;
    close_all();
    const ForeignFiles foreign;
    await_ticks();
    if (sum_of_both(comms) != trSystemError) return 2;
    if (std::string(trGetLastError(comms[0])).find("closed descriptors") == std::string::npos) return 3;
    for (trComm_t comm : comms)
      if (trCommDestroy(comm) != trSuccess) return 4;
    if (!foreign.untouched()) return 5;
    trComm_t after[2];
    if (trCommInitAll(after, 2) != trSuccess || sum_of_both(after) != trSuccess) return 6;
    for (trComm_t comm : after)
      if (trCommDestroy(comm) != trSuccess) return 7;
    return foreign.untouched() ? 0 : 8;
  });
}

}  // namespace
}  // namespace treering::testing
