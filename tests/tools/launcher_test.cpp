// SPDX-License-Identifier: Apache-2.0
#include "launcher.h"

#include "interrupt.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace treering::perf {
namespace {

Options with_processes(int procs) {
  Options options;
  options.procs = procs;
  return options;
}

// The processes that ran, by the places they filled in.
bool gone(const SharedState& shared, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (shared.places[rank].pid == 0 || kill(shared.places[rank].pid, 0) == 0 || errno != ESRCH) return false;
  }
  return true;
}

TEST(Launcher, RanksMeetAndTheRunHasRankZerosStatus) {
  SharedState* shared = create_shared_state(3, 4);
  ASSERT_NE(shared, nullptr);
  const int status = launch(with_processes(3), shared, [&](int process) {
    SharedGroup group(shared, process, 3);
    shared->places[process].pid = getpid();
    for (int round = 0; round < 1000; ++round) {
      const auto all = group.gather(process * 1000 + round);
      for (int rank = 0; rank < 3; ++rank) {
        if (all[rank] != rank * 1000 + round) return 9;
      }
    }
    for (int i = 0; i < 4; ++i) group.own_samples()[i] = (process + i) % 3;
    group.barrier();
    if (group.slowest_samples() != std::vector<double>{2, 2, 2, 2}) return 9;
    if (process == 0) shared->exit_status = 3;
    return 0;
  });
  EXPECT_EQ(status, 3);
  EXPECT_TRUE(gone(*shared, 3));
}

TEST(Launcher, DeadProcessEndsTheRunAndIsNamed) {
  SharedState* shared = create_shared_state(4, 0);
  Options options = with_processes(2);
  options.threads = 2;
  testing::internal::CaptureStderr();
  const int status = launch(options, shared, [&](int process) {
    shared->places[process].pid = getpid();
    if (process == 1) {
      while (shared->places[0].pid == 0) usleep(1000);
      raise(SIGKILL);
    }
    SharedGroup(shared, process, 2).barrier();  // for ever, were it not for the launcher
    return 0;
  });
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 1);
  EXPECT_NE(error.find("ranks 2 to 3"), std::string::npos) << error;
  EXPECT_NE(error.find("signal 9"), std::string::npos) << error;
  EXPECT_TRUE(gone(*shared, 2));
}

TEST(Launcher, FailedProcessEndsTheRun) {
  SharedState* shared = create_shared_state(2, 0);
  testing::internal::CaptureStderr();
  const int status = launch(with_processes(2), shared, [&](int process) {
    if (process == 0) return 1;
    SharedGroup(shared, process, 2).barrier();
    return 0;
  });
  const std::string error = testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 1);
  EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
}

TEST(Launcher, SignalEndsAllProcesses) {
  SharedState* shared = create_shared_state(2, 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    _exit(launch(with_processes(2), shared, [&](int process) {
      signal(SIGTERM, SIG_IGN);  // the worst case: it takes SIGKILL
      shared->places[process].pid = getpid();
      SharedGroup(shared, process, 3).barrier();
      return 0;
    }));
  }
  while (shared->places[0].pid == 0 || shared->places[1].pid == 0) usleep(1000);
  kill(launcher, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT) << status;
  EXPECT_TRUE(gone(*shared, 2));
}

Options endless(int procs) {
  Options options = with_processes(procs);
  options.cycles = 0;
  return options;
}

// What a launcher of two processes ends with, each of which marks itself ready and then goes on as `process_main` does.
// `interrupts` SIGINTs are sent, each when all processes have counted the one before in their `core`.
int status_after_interrupts(int interrupts, SharedState* shared, const std::function<int(RankPlace*)>& process_main) {
  for (RankPlace* place : {&shared->places[0], &shared->places[1]}) place->core = 0;
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    _exit(launch(endless(2), shared, [&](int process) { return process_main(&shared->places[process]); }));
  }
  const auto* places = const_cast<const volatile RankPlace*>(shared->places);
  while (places[0].pid == 0 || places[1].pid == 0) usleep(1000);
  for (int sent = 0; sent < interrupts; ++sent) {
    while (places[0].core < sent || places[1].core < sent) usleep(1000);
    kill(launcher, SIGINT);
  }
  int status = 0;
  EXPECT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_TRUE(gone(*shared, 2));
  return WEXITSTATUS(status);
}

TEST(Launcher, AnInterruptOfAnEndlessRunIsHandedOnAndTheRunHasItsOwnStatus) {
  SharedState* shared = create_shared_state(2, 0);
  shared->exit_status = 3;
  EXPECT_EQ(status_after_interrupts(1, shared,
                                    [](RankPlace* place) {
                                      note_interrupts();
                                      place->pid = getpid();
                                      while (!interrupted()) usleep(1000);
                                      return 0;
                                    }),
            3);
}

TEST(Launcher, ASecondInterruptEndsARunThatDoesNotEndByItself) {
  SharedState* shared = create_shared_state(2, 0);
  EXPECT_EQ(status_after_interrupts(2, shared,
                                    [](RankPlace* place) {
                                      note_interrupts();
                                      place->pid = getpid();
                                      while (!interrupted()) usleep(1000);
                                      place->core = 1;
                                      for (;;) pause();
                                      return 0;
                                    }),
            128 + SIGINT);
}

// Such as ssh, or a rank that is not ready yet.
TEST(Launcher, AnInterruptEndsProcessesThatDoNotTakeIt) {
  SharedState* shared = create_shared_state(2, 0);
  EXPECT_EQ(status_after_interrupts(1, shared,
                                    [](RankPlace* place) {
                                      place->pid = getpid();
                                      for (;;) pause();
                                      return 0;
                                    }),
            128 + SIGINT);
}

TEST(Launcher, ProcessesDieWithTheLauncher) {
  SharedState* shared = create_shared_state(2, 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    _exit(launch(with_processes(2), shared, [&](int process) {
      shared->places[process].pid = getpid();
      SharedGroup(shared, process, 3).barrier();
      return 0;
    }));
  }
  while (shared->places[0].pid == 0 || shared->places[1].pid == 0) usleep(1000);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  // The orphans are ended by the kernel; the process that adopts them reaps them. A zombie is dead too.
  const auto dead = [](pid_t pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (FILE* file = fopen(path, "r")) {
      if (fscanf(file, "%*d %*s %c", &state) != 1) state = 'Z';
      fclose(file);
    }
    return state == 'Z' || state == 'X';
  };
  bool all_dead = false;
  for (int turn = 0; turn < 500 && !all_dead; ++turn) {
    all_dead = dead(shared->places[0].pid) && dead(shared->places[1].pid);
    if (!all_dead) usleep(10000);
  }
  EXPECT_TRUE(all_dead);
}

TEST(AssignCores, OneEachOrNone) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const int present = CPU_COUNT(&allowed);
  const std::vector<int> cores = assign_cores(present);
  ASSERT_EQ(static_cast<int>(cores.size()), present);
  for (int i = 1; i < present; ++i) EXPECT_LT(cores[i - 1], cores[i]);
  EXPECT_EQ(assign_cores(present + 1), std::vector<int>(static_cast<size_t>(present) + 1, -1));
}

}  // namespace
}  // namespace treering::perf
