// SPDX-License-Identifier: Apache-2.0
// What a rank would lock is computed before it does, and fits into what it may lock.
#include "transport/verbs/locked_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace treering::verbs {
namespace {

constexpr size_t kStaging = 1 << 20, kPlace = 16 << 10;
constexpr uint32_t kChannels = 4;

LockedMemory planned(uint32_t peers, size_t available) {
  return plan_locked_memory(peers, kChannels, kStaging, kPlace, available);
}

TEST(VerbsLockedMemory, IsWhatStagingAndPeersNeed) {
  const LockedMemory plan = planned(20, SIZE_MAX);
  EXPECT_EQ(plan.places, kFifoDepth);
  EXPECT_GE(plan.peer_bytes, kChannels * kFifoDepth * (kPlace + 2 * kLineStride));
  EXPECT_LE(plan.peer_bytes, kChannels * kFifoDepth * (kPlace + 2 * kLineStride) + 3 * 4096);
  EXPECT_EQ(plan.bytes(), kStaging + 20 * plan.peer_bytes);
}

// Fewer places, and then none: never more than may be locked.
TEST(VerbsLockedMemory, FitsIntoWhatMayBeLocked) {
  const size_t whole = planned(16, SIZE_MAX).bytes();
  EXPECT_EQ(planned(16, whole).places, kFifoDepth);
  uint32_t places = kFifoDepth;
  for (size_t available = whole; available + 4096 > 4096; available -= std::min<size_t>(available, 64 << 10)) {
    const LockedMemory plan = planned(16, available);
    if (plan.places == 0) break;
    EXPECT_LE(plan.bytes(), available);
    EXPECT_LE(plan.places, places);
    places = plan.places;
  }
  EXPECT_EQ(places, kFewestPlaces);
  EXPECT_EQ(planned(16, kStaging).places, 0u);
}

TEST(VerbsLockedMemory, TheLimitIsReadAndRaised) {
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit{64 << 10, 128 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(1);
    raise_locked_limit();
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur != 128 << 10) _exit(2);
    // One that may lock all it likes has no limit.
    const LockedLimit read = locked_limit();
    if (read.limit != SIZE_MAX && (read.limit != 128 << 10 || read.left() != (128 << 10) - read.locked)) _exit(3);
    const bool says = read.limit == SIZE_MAX ? read.text().find("as much") != std::string::npos
                                             : read.text().find("128 KiB") != std::string::npos;
    _exit(says ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(VerbsLockedMemory, NothingIsLeftOfALimitThatIsExceeded) {
  EXPECT_EQ((LockedLimit{64 << 10, 65 << 10}).left(), 0u);
  EXPECT_EQ((LockedLimit{64 << 10, 24 << 10}).left(), size_t{40} << 10);
  EXPECT_EQ((LockedLimit{SIZE_MAX, 24 << 10}).left(), SIZE_MAX);
}

}  // namespace
}  // namespace treering::verbs
