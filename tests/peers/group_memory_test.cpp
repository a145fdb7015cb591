// SPDX-License-Identifier: Apache-2.0
// Where the areas of ranks lie: in one segment for those of a machine, else in private memory.
#include "peers/group_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace treering {
namespace {

constexpr uint32_t kRanks = 3;

AreaLayout layout_of(uint32_t ranks) { return area_layout(ranks, 1, staging_of_channel(ranks, 1, 0)); }

int new_segment(const AreaLayout& layout) {
  const int descriptor = memfd_create("group_memory_test", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(descriptor, static_cast<off_t>(layout.total_bytes)), 0);
  return descriptor;
}

bool is_closed(int descriptor) { return fcntl(descriptor, F_GETFD) < 0 && errno == EBADF; }

TEST(GroupMemory, RanksOfAMachineSeeEachOthersAreas) {
  const AreaLayout layout = layout_of(kRanks);
  const int descriptor = new_segment(layout);
  GroupMemory memories[kRanks];
  for (uint32_t rank = 0; rank < kRanks; ++rank)
    ASSERT_TRUE(memories[rank].map(layout, rank, dup(descriptor), true, "RanksOfAMachine").ok());
  close(descriptor);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const GroupMemory& own = memories[rank];
    ASSERT_TRUE(own.is_mapped() && own.is_shared());
    own.status()->operation = 100 + rank;
    EXPECT_EQ(status_of(memories[(rank + 1) % kRanks].of(rank))->operation, 100 + rank);
    EXPECT_EQ(own.failure(), memories[0].failure());
    EXPECT_EQ(own.mailboxes().size(), kRanks);
    RankInfo info{};
    info.nonce = 7 + rank;
    own.describe(&info);
    EXPECT_EQ(info.head_address, reinterpret_cast<uint64_t>(own.own().head()));
    EXPECT_EQ(info.body_address, reinterpret_cast<uint64_t>(own.own().body()));
    EXPECT_TRUE(info.in_segment && info.got_segment);
    EXPECT_GE(info.segment_descriptor, 0);
    EXPECT_EQ(*memories[0].of(rank).nonce(), 7 + rank);
  }
  memories[0].close_descriptor();
  RankInfo info{};
  memories[1].describe(&info);
  EXPECT_LT(info.segment_descriptor, 0) << "the ranks of a process share it";
}

TEST(GroupMemory, AreasOfDifferentRanksDoNotOverlap) {
  const AreaLayout layout = layout_of(kRanks);
  GroupMemory memory;
  ASSERT_TRUE(memory.map(layout, 0, new_segment(layout), true, "AreasOfDifferent").ok());
  for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) {
    EXPECT_GE(memory.of(rank + 1).head(), memory.of(rank).head() + layout.head_bytes);
    EXPECT_GE(memory.of(rank + 1).body(), memory.of(rank).body() + layout.body_bytes);
  }
  EXPECT_LE(memory.of(kRanks - 1).body() + layout.body_bytes, memory.segment()->base() + layout.total_bytes);
}

TEST(GroupMemory, WithoutASegmentTheAreaIsPrivate) {
  GroupMemory memory;
  EXPECT_FALSE(memory.is_mapped());
  ASSERT_TRUE(memory.map(layout_of(kRanks), 1, -1, true, "WithoutASegment").ok());
  EXPECT_TRUE(memory.is_mapped());
  EXPECT_FALSE(memory.is_shared());
  EXPECT_TRUE(memory.mailboxes().empty());
  memory.status()->operation = 5;
  RankInfo info{};
  memory.describe(&info);
  EXPECT_FALSE(info.in_segment || info.got_segment);
  EXPECT_LT(info.segment_descriptor, 0);
  memory.close_descriptor();
}

TEST(GroupMemory, ASegmentThatMayNotBeUsedIsClosed) {
  const AreaLayout layout = layout_of(kRanks);
  const int descriptor = new_segment(layout);
  GroupMemory memory;
  ASSERT_TRUE(memory.map(layout, 0, descriptor, false, "ASegmentThatMayNot").ok());
  EXPECT_FALSE(memory.is_shared());
  EXPECT_TRUE(is_closed(descriptor));
}

TEST(GroupMemory, ASegmentThatCannotBeMappedIsSaidAndDoneWithout) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  GroupMemory memory;
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(memory.map(layout_of(kRanks), 0, ends[0], true, "ASegmentThatCannot").ok());
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("shared memory cannot be used: mmap of"), std::string::npos);
  EXPECT_FALSE(memory.is_shared());
  RankInfo info{};
  memory.describe(&info);
  EXPECT_TRUE(info.got_segment) << "others are told that it came";
  close(ends[1]);
}

TEST(GroupMemory, ManyRanksHaveNoMailboxes) {
  const AreaLayout layout = layout_of(kMaxMailboxRanks + 1);
  GroupMemory memory;
  ASSERT_TRUE(memory.map(layout, 0, new_segment(layout), true, "ManyRanks").ok());
  EXPECT_TRUE(memory.is_shared());
  EXPECT_TRUE(memory.mailboxes().empty());
}

}  // namespace
}  // namespace treering
