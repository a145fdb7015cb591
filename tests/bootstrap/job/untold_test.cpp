// SPDX-License-Identifier: Apache-2.0
// Processes that do not answer: who tells them of a verdict, and what keeps news back. On times that the test makes up.
#include "bootstrap/job/failure_detector.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "bootstrap/job/detectors.h"

namespace treering {
namespace {

using testing::Detector;
using testing::kNow;
using testing::kParents;
using testing::silence_of;
using Numbers = std::vector<uint32_t>;
using std::chrono::milliseconds;

TEST(Untold, AParentWithoutRanksKeepsTheNewsOfTheOthersBack) {
  Detector below(1, kParents, {1, 2, 3, 4, 5});
  EXPECT_FALSE(below.silent_relay());
  EXPECT_TRUE(below.take_silence(silence_of(3), kNow)) << "not the parent";
  EXPECT_FALSE(below.silent_relay());
  EXPECT_TRUE(below.take_silence(silence_of(0, 3000), kNow));
  ASSERT_TRUE(below.silent_relay());
  EXPECT_EQ(below.silent_relay()->reason, "process 0 (pid 1000 on a): its process does not answer");
  below.tree->attach_to(2);
  EXPECT_FALSE(below.silent_relay()) << "of the new parent nothing is known";
  Detector beside(1);
  EXPECT_TRUE(beside.take_silence(silence_of(0), kNow));
  EXPECT_FALSE(beside.silent_relay()) << "one with ranks is named with these";
}

TEST(Untold, SilentProcessesAreToldOfAVerdictByTheTopForAWhile) {
  Detector detector(0);
  EXPECT_TRUE(detector.untold(kNow, kNow).empty()) << "all answer";
  ASSERT_TRUE(detector.take_silence(silence_of(1), kNow));
  ASSERT_TRUE(detector.take_silence(silence_of(5), kNow));
  EXPECT_EQ(detector.untold(kNow, kNow), (Numbers{1, 5}));
  EXPECT_EQ(detector.untold(kNow, kNow + kUntoldTimeout - milliseconds(1)), (Numbers{1, 5}));
  EXPECT_TRUE(detector.untold(kNow, kNow + kUntoldTimeout).empty());
  detector.told(1);
  EXPECT_EQ(detector.untold(kNow, kNow), (Numbers{5}));
  EXPECT_TRUE(detector.take_heard(5));
  EXPECT_TRUE(detector.untold(kNow, kNow).empty()) << "it has a place in the tree, or will hear when it gets one";
}

// Those that are dialled first may be out of reach.
TEST(Untold, OfManyOthersAreToldEachSecond) {
  constexpr uint32_t kProcesses = 2 * kMaxUntold + 3;
  Numbers parents(kProcesses, 0);
  parents[0] = kNobody;
  Detector detector(0, parents);
  for (uint32_t process = 1; process < kProcesses; ++process)
    ASSERT_TRUE(detector.take_silence(silence_of(process), kNow));
  std::set<uint32_t> dialled;
  for (auto passed = milliseconds(0); passed < kUntoldTimeout; passed += std::chrono::seconds(1)) {
    const Numbers now = detector.untold(kNow, kNow + passed);
    EXPECT_EQ(now.size(), kMaxUntold);
    dialled.insert(now.begin(), now.end());
  }
  EXPECT_EQ(dialled.size(), kProcesses - 1);
}

TEST(Untold, OnlyTheTopTellsAndNotThoseThatLeft) {
  Detector below(1);
  ASSERT_TRUE(below.take_silence(silence_of(5), kNow));
  EXPECT_TRUE(below.untold(kNow, kNow).empty());
  Detector top(0);
  ASSERT_TRUE(top.take_silence(silence_of(5), kNow));
  for (uint32_t rank : top.tree->ranks_of(5)) top.tree->rank_left(rank);
  EXPECT_TRUE(top.untold(kNow, kNow).empty());
}

}  // namespace
}  // namespace treering
