// SPDX-License-Identifier: Apache-2.0
// What a rank would lock is computed before it does, and fits into what it may lock.
#include "transport/verbs/locked_memory.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace treering::verbs {
namespace {

constexpr size_t kStaging = 1 << 20, kPlace = 16 << 10;
constexpr uint32_t kChannels = 4;

LockedMemory planned(uint32_t peers, size_t available, size_t usual_staging = kStaging / kChannels,
                     uint32_t rails = 1) {
  const AreaLayout layout(peers + 1, kChannels, kStaging / kChannels, AreaSizes());
  TransportSetup setup;
  setup.layout = &layout;
  setup.max_message_bytes = kPlace;
  setup.usual_staging_bytes = usual_staging;
  setup.usual_peers = peers;
  return plan_locked_memory(setup, rails, available);
}

// Parts that begin and end within pages share these with others, and each counts them.
TEST(VerbsLockedMemory, PartsOfStagingMemoryAreWholePages) {
  EXPECT_EQ(planned(20, SIZE_MAX).staging_bytes, kStaging);
  EXPECT_EQ(planned(20, SIZE_MAX, 16 * 5312).staging_bytes, kChannels * 22 * 4096);
}

TEST(VerbsLockedMemory, IsWhatStagingAndPeersNeed) {
  const LockedMemory plan = planned(20, SIZE_MAX);
  EXPECT_EQ(plan.places, kFifoDepth);
  EXPECT_GE(plan.peer_bytes, kChannels * kFifoDepth * (kPlace + kHeaderStride));
  EXPECT_LE(plan.peer_bytes, kChannels * kFifoDepth * (kPlace + 2 * kHeaderStride) + 3 * 4096);
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
  EXPECT_EQ(places, kMinPlaces);
  EXPECT_EQ(planned(16, kStaging).places, 0u);
}

// Each rail locks all of it. Where that is too much there are fewer rails, as far as one with the fewest places.
TEST(VerbsLockedMemory, CountsRails) {
  const auto with_rails = [](size_t available) { return planned(16, available, kStaging / kChannels, 4); };
  const LockedMemory one = planned(16, SIZE_MAX), four = with_rails(SIZE_MAX);
  EXPECT_EQ(four.rails, 4u);
  EXPECT_EQ(four.staging_bytes, 4 * one.staging_bytes);
  EXPECT_EQ(four.peer_bytes, 4 * one.peer_bytes);
  EXPECT_EQ(with_rails(four.bytes() - 1).rails, 4u);
  EXPECT_EQ(with_rails(four.bytes() - 1).places, kFifoDepth - 1);
  uint32_t rails = 4;
  for (size_t available = four.bytes(); available > 1 << 20; available -= 1 << 20) {
    const LockedMemory plan = with_rails(available);
    if (plan.places == 0) break;
    EXPECT_LE(plan.bytes(), available);
    EXPECT_LE(plan.rails, rails);
    rails = plan.rails;
  }
  EXPECT_EQ(rails, 1u);
  EXPECT_EQ(with_rails(one.bytes()).bytes(), one.bytes()) << "who has enough for one rail has as much as ever";
  EXPECT_EQ(with_rails(kStaging).places, 0u);
}

// Root would have no limit.
bool drop_capability() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return false;
  sets[0].effective &= ~(1u << CAP_IPC_LOCK);
  return syscall(SYS_capset, &header, sets) == 0;
}

TEST(VerbsLockedMemory, TheLimitIsReadAndRaised) {
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit{64 << 10, 128 << 10};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !drop_capability()) _exit(1);
    raise_locked_limit();
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur != 128 << 10) _exit(2);
    const LockedLimit read = locked_limit();
    if (read.limit != 128 << 10 || read.left() != (128 << 10) - read.locked) _exit(3);
    if (read.text().find("128 KiB") == std::string::npos) _exit(4);
    _exit(locked_memory_text().find("raise that") != std::string::npos ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Ranks of one process, and its communicators, share the limit: what one has planned is not another's.
TEST(VerbsLockedMemory, WhatIsPlannedIsSetAside) {
  const size_t whole = planned(16, SIZE_MAX).bytes();
  LockedMemory first, second, third;
  {
    LockedReservation one, other;
    const auto plan = [](size_t available) { return planned(16, available); };
    first = one.make(2 * whole, plan);
    second = other.make(2 * whole, plan);
    EXPECT_EQ(LockedReservation::reserved(), 2 * whole);
    LockedReservation none;
    third = none.make(2 * whole, plan);
    EXPECT_EQ(LockedReservation::reserved(), 2 * whole) << "what cannot be had is not set aside";
    one.use(kStaging);  // it is locked now, and the kernel counts it
    EXPECT_EQ(LockedReservation::reserved(), 2 * whole - kStaging);
    one.use(SIZE_MAX);
    EXPECT_EQ(LockedReservation::reserved(), whole);
  }
  EXPECT_EQ(first.places, kFifoDepth);
  EXPECT_EQ(second.places, kFifoDepth);
  EXPECT_EQ(third.places, 0u);
  EXPECT_EQ(LockedReservation::reserved(), 0u);
}

TEST(VerbsLockedMemory, NothingIsLeftOfALimitThatIsExceeded) {
  EXPECT_EQ((LockedLimit{64 << 10, 65 << 10}).left(), 0u);
  EXPECT_EQ((LockedLimit{64 << 10, 24 << 10}).left(), size_t{40} << 10);
  EXPECT_EQ((LockedLimit{SIZE_MAX, 24 << 10}).left(), SIZE_MAX);
}

}  // namespace
}  // namespace treering::verbs
