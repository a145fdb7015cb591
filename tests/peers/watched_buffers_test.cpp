// SPDX-License-Identifier: Apache-2.0
// WatchedBuffers on a transport that only counts, and the kernel's userfaultfd.
#include "peers/watched_buffers.h"

#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace treering {
namespace {

constexpr size_t kBytes = 1 << 20;

class Counting final : public Transport {
 public:
  Status prove(uint32_t) override { return {}; }
  PeerConnections connect(uint32_t, PairAbilities) override { return {}; }
  Status register_region(const Region& region) override {
    if (bytes + region.bytes > limit) return {trSystemError, "too much"};
    EXPECT_TRUE(known.insert(region.id).second) << "an id is used twice";
    live.insert(region.id);
    bytes += region.bytes;
    return {};
  }
  void end_region(uint32_t id) override { bytes -= live.erase(id) * kBytes; }

  std::set<uint32_t> live, known;
  size_t bytes = 0, limit = SIZE_MAX;
};

std::byte* mapped(size_t bytes, void* at = nullptr) {
  return static_cast<std::byte*>(
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0));
}

class Watched : public ::testing::Test {
 protected:
  void SetUp() override {
    Status why_not;
    if (PageWatch::open(&why_not) == nullptr) GTEST_SKIP() << why_not.message();
  }
  Region use(const void* data, size_t bytes = kBytes) {
    buffers_.begin_call();
    return buffers_.find(data, bytes);
  }
  // Until it is registered; a moment in which other changes are not known yet does not count.
  Region use_until_registered(const void* data, size_t bytes = kBytes) {
    for (int call = 0; call < 1'000'000; ++call)
      if (const Region region = use(data, bytes); region.id != 0) return region;
    ADD_FAILURE() << "it is not registered";
    return {};
  }

  Counting transport_;
  WatchedBuffers buffers_{{&transport_}, 0, size_t{1} << 40};
};

TEST_F(Watched, AreRegionsFromTheSecondUseOnAndKeepTheirIds) {
  std::byte* const memory = mapped(kBytes);
  EXPECT_EQ(use(memory).id, 0u);
  const Region region = use(memory);
  EXPECT_NE(region.id, 0u);
  EXPECT_TRUE(region.watched);
  EXPECT_EQ(region.base, memory);
  EXPECT_EQ(region.bytes, kBytes);
  EXPECT_EQ(use(memory + 100'000, 100'000).id, region.id);
  EXPECT_EQ(transport_.live, std::set<uint32_t>{region.id});
  munmap(memory, kBytes);
  EXPECT_EQ(use(memory).id, 0u);
  for (int call = 0; call < 1'000'000 && !transport_.live.empty(); ++call) use(memory);  // until the change is marked
  EXPECT_TRUE(transport_.live.empty());
}

TEST_F(Watched, MemoryAtTheSameAddressIsAnotherRegion) {
  std::byte* const memory = mapped(kBytes);
  uint32_t before = 0;
  for (int time = 0; time < 100; ++time) {
    const Region region = use_until_registered(memory);
    EXPECT_GT(region.id, before);
    before = region.id;
    mapped(kBytes, memory);
    EXPECT_EQ(use(memory).id, 0u);
  }
  munmap(memory, kBytes);
}

// The lowest addresses that are free are given out again, by the kernel and by malloc().
TEST_F(Watched, ThreadsThatAllocateAndFreeTakeNoneForAnother) {
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread)
    threads.emplace_back([&] {
      while (!ends) std::vector<std::byte>(kBytes, std::byte{1});
    });
  for (int time = 0; time < 300; ++time) {
    std::byte* const memory = mapped(kBytes);
    const uint32_t first = use(memory).id;
    EXPECT_EQ(first, 0u) << "it was just mapped";
    use_until_registered(memory);
    munmap(memory, kBytes);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Watched, GiveWayWhereTheTransportTakesNoMore) {
  std::vector<std::byte*> memory(6);
  for (auto& one : memory) one = mapped(kBytes);
  transport_.limit = 3 * kBytes;
  for (int time = 0; time < 3; ++time)
    for (std::byte* const one : memory) {
      use_until_registered(one);
      EXPECT_LE(transport_.live.size(), 3u);
    }
  transport_.limit = 0;
  for (std::byte* const one : memory) munmap(one, kBytes);
  std::byte* const other = mapped(kBytes);
  for (int call = 0; call < 1'000'000 && !transport_.live.empty(); ++call) use(other);  // until the changes are known
  for (int call = 0; call < 100; ++call) EXPECT_EQ(use(other).id, 0u);
  EXPECT_TRUE(transport_.live.empty()) << "what was given up for it stays so";
  munmap(other, kBytes);
}

// Pages of files change without a word: another process may cut the file.
TEST_F(Watched, MemoryOfFilesIsCopied) {
  void* const shared = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::byte* const read_only = mapped(kBytes);
  ASSERT_EQ(mprotect(read_only + kBytes / 2, 4096, PROT_READ), 0);
  for (int call = 0; call < 100; ++call) {
    EXPECT_EQ(use(shared).id, 0u);
    EXPECT_EQ(use(read_only).id, 0u);
  }
  EXPECT_TRUE(transport_.known.empty());
  munmap(shared, kBytes);
  munmap(read_only, kBytes);
}

// ... and takes the place of nothing, as often as it is tried.
TEST_F(Watched, OnesThatCannotBeRegisteredReplaceNone) {
  std::vector<std::byte*> memory(3);
  for (auto& one : memory) use_until_registered(one = mapped(kBytes));
  transport_.limit = 3 * kBytes;
  const std::set<uint32_t> before = transport_.live;
  void* const shared = mmap(nullptr, 3 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::byte* const other = mapped(3 * kBytes);  // that the program watches itself
  const auto own = static_cast<int>(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY));
  uffdio_api api{UFFD_API, 0, 0};
  ASSERT_EQ(ioctl(own, UFFDIO_API, &api), 0);
  uffdio_register request{{reinterpret_cast<uintptr_t>(other), kBytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
  ASSERT_EQ(ioctl(own, UFFDIO_REGISTER, &request), 0);
  for (int call = 0; call < 100; ++call)
    for (const void* one : {shared, static_cast<void*>(other)}) EXPECT_EQ(use(one, 3 * kBytes).id, 0u);
  EXPECT_EQ(transport_.live, before);
  EXPECT_EQ(transport_.known, before);
  close(own);
  for (std::byte* const one : memory) munmap(one, kBytes);
  munmap(shared, 3 * kBytes);
  munmap(other, 3 * kBytes);
}

// Mappings above a stack become one with it, so memory cannot be told from it.
TEST_F(Watched, StacksAreMemoryAsAnyOther) {
  std::byte stack[1 << 18] = {};
  const Region region = use_until_registered(stack, sizeof stack);
  EXPECT_EQ(region.base, stack);
}

// Input and output of one call.
TEST_F(Watched, BuffersOfACallDoNotGiveWayToEachOther) {
  std::byte* const memory = mapped(2 * kBytes);
  transport_.limit = kBytes;
  int together = 0;
  for (int call = 0; call < 200; ++call) {
    buffers_.begin_call();
    const Region first = buffers_.find(memory, kBytes), second = buffers_.find(memory + kBytes, kBytes);
    together += first.id != 0 && second.id != 0;
    for (const Region& region : {first, second}) EXPECT_TRUE(region.id == 0 || transport_.live.contains(region.id));
  }
  EXPECT_EQ(together, 0);
  munmap(memory, 2 * kBytes);
}

}  // namespace
}  // namespace treering
