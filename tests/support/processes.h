// SPDX-License-Identifier: Apache-2.0
// Ranks as real processes, for tests: forks them, hands them a unique id, waits for them with a deadline, and leaves
// none behind.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "treering/treering.h"

namespace treering::testing {

// What became of one rank.
struct RankResult {
  int exit_code = -1;  // of the body; -1: ended by a signal
  int signal = 0;
  std::string output;  // what the body wrote with say()
};

class RankProcesses {
 public:
  // body(rank, id): runs in a process of its own; its return value is the exit code. Rank 0's process makes the id.
  using Body = std::function<int(int rank, const trUniqueId& id)>;

  RankProcesses(int ranks, const Body& body);
  // Ends what still runs, by its pid.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  // Waits until the rank has called reached().
  bool wait_until_reached(int rank, std::chrono::seconds timeout = std::chrono::seconds(30));
  // SIGSTOP, and waits until all its threads stand: the others run on until the one that gets the signal has its turn.
  void stop(int rank);
  // Waits for one rank; after the deadline it is killed and its signal is SIGKILL.
  RankResult wait(int rank, std::chrono::seconds timeout = std::chrono::seconds(60));
  std::vector<RankResult> wait_all(std::chrono::seconds timeout = std::chrono::seconds(60));

 private:
  std::vector<pid_t> pids_;
  std::vector<int> outputs_;  // read ends
  std::vector<int> reached_;
  std::vector<bool> waited_;
};

// Whether a rank that this process has ended or waited for since the last question crashed, threw an exception, or was ended
// by a sanitizer: no stall of the machine does that.
bool any_rank_crashed();

// fork() once all other threads of this process sleep: the sanitizers of g++ 12 give a child their locks as they are, and the
// library's thread may hold one.
pid_t fork_when_quiet();

// Inside a body: text for RankResult::output; a mark for wait_until_reached().
void say(const std::string& text);
void reached();

// Forks `ranks` processes, expects all to return 0, and shows what they said if not.
void expect_all_succeed(int ranks, const RankProcesses::Body& body,
                        std::chrono::seconds timeout = std::chrono::seconds(100));

}  // namespace treering::testing

// Inside a body: a failed call ends the rank with its text.
#define TR_CHECK(call)                                                                        \
  do {                                                                                        \
    if (trResult_t result_ = (call); result_ != trSuccess) {                                  \
      ::treering::testing::say(std::string(#call) + ": " + trGetErrorString(result_) + ": " + \
                               trGetLastError(nullptr));                                      \
      return 100;                                                                             \
    }                                                                                         \
  } while (false)
