// SPDX-License-Identifier: Apache-2.0
// Hubs that end while a peer's host has not answered: nothing of them stays once it has.
#include <gtest/gtest.h>

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
  void get_stuck() {
    pair_.open(0);
    pair_.introduce(0);
    EXPECT_FALSE(pair_.reach(0, std::chrono::milliseconds(50)).ok());
    pair_.end(0);
  }
  // Side 1 looks until nothing of side 0 is left.
  bool all_ends() {
    return eventually([&] { return pair_.hub(1)->progress(), sockets() <= before_ && !thread_runs(); });
  }

  UcxPair pair_{1, 4096};
  size_t before_ = 0;
};

TEST_F(UcxStuckHubs, EndOnceThePeerAnswers) {
  get_stuck();
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

TEST_F(UcxStuckHubs, AProcessEndsBesideThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        get_stuck();
        std::exit(soon(&thread_runs) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace treering::ucx
