// SPDX-License-Identifier: Apache-2.0
// Hubs that end while a peer's host has not answered: nothing of them stays once it has.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/waiting.h"
#include "transport/ucx/pair.h"
#include "transport/ucx/stuck_hubs.h"

namespace treering::ucx {
namespace {

using treering::testing::eventually;
using treering::testing::soon;

bool thread_runs() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name(entry.path() / "comm");
    if (std::string line; std::getline(name, line) && line == "treering-ucx") return true;
  }
  return false;
}

class UcxStuckHubs : public ::testing::Test {
 protected:
  UcxStuckHubs() {
    pair_.open(1);
    before_ = sockets();
  }

  // Side 0 has said hello to side 1, which does not look, and ends.
  void get_stuck() { get_stuck(&pair_); }
  static void get_stuck(UcxPair* pair) {
    pair->open(0);
    pair->introduce(0);
    EXPECT_FALSE(pair->reach(0, std::chrono::milliseconds(50)).ok());
    pair->end(0);
  }
  // Side 1 looks until nothing of side 0 is left.
  bool all_ends() {
    return eventually(
        [&] { return pair_.hub(1)->progress(), StuckHubs::count() == 0 && sockets() <= before_ && !thread_runs(); });
  }

  UcxPair pair_{1, 4096};
  size_t before_ = 0;
};

TEST_F(UcxStuckHubs, EndOnceThePeerAnswers) {
  get_stuck();
  EXPECT_EQ(StuckHubs::count(), 1u);
  EXPECT_GT(sockets(), before_);
  EXPECT_TRUE(soon(&thread_runs));
  EXPECT_TRUE(all_ends()) << sockets() << " sockets, before " << before_;
}

TEST_F(UcxStuckHubs, SeveralEnd) {
  for (int i = 0; i < 3; ++i) get_stuck();
  EXPECT_TRUE(all_ends()) << sockets() << " sockets, before " << before_;
}

TEST_F(UcxStuckHubs, TheThreadGivesUpAndTheNextHubStartsItAgain) {
  get_stuck();
  EXPECT_TRUE(soon(&thread_runs));
  EXPECT_TRUE(soon([] { return !thread_runs(); }));
  EXPECT_GT(sockets(), before_);
  get_stuck();
  EXPECT_TRUE(all_ends()) << sockets() << " sockets, before " << before_;
}

// UCX takes itself down at the end: the thread must have ended by then.
TEST_F(UcxStuckHubs, TheThreadEndsBeforeAProcessDoes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        // Called after what get_stuck() asks for at the end of the process, and before UCX's own end: ThreadSanitizer
        // finds that at odds with UCX's other thread.
        std::atexit([] { _exit(soon([] { return !thread_runs(); }, StuckHubs::kTriesFor / 2) ? 0 : 2); });
        get_stuck();
        std::exit(soon(&thread_runs) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(UcxStuckHubs, AForkedChildLeavesThoseOfItsParentAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        get_stuck();
        const pid_t child = fork();
        if (child == 0) _exit(StuckHubs::count() == 0 ? 0 : 2);
        if (StuckHubs::count() != 1) _exit(1);
        int status = 0;
        waitpid(child, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace treering::ucx
